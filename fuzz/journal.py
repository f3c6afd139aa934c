"""What a run did, line by line, so that a killed worker or a killed run loses nothing that it had found.

Every process appends to a file of its own, DIR/journal/<name>.jsonl: a line before each case, with the case in it, and
one after it, with the verdict. Summary, progress and failures are read from these files alone. The lines are strict
JSON; infinities and NaN are written as the strings "inf", "-inf" and "nan".

Events, by the value of "event":
    worker    a worker process started: pid
    device    it has loaded the kernel: device, versions, strata {name: why no case of the run has it, "" for no reason}
    case      a case is about to run: unit, phase, at (seconds since the start), case, strata, traits, size
    verdict   it ran: ran {check: worst ratio or null}, findings, ms
    shrunk    a search for the smallest case that fails a check ended: worker, traits of the case that it began with;
              case, strata, traits, size and finding of the smallest. In <worker>.found.jsonl, as all workers read it
    error     the run cannot do what was asked, or the machinery failed: message, usage (true or false)
    warning   something was not as it should be, and the run goes on: message
    ended     the worker has done all its work; in the journal of a driver, a shard has: shard (`fuzz.cluster`)
    lost      the worker is gone with its machine or its whole run, the case that it was in is run again: why
    resumed   written by the controlling process: the run goes on
    died, hung, killed, stop   written by the controlling process: a worker's end, and why the run stopped
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fuzz.files import strict

Event = dict[str, Any]


class Journal:
    """The journal of one process."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.jsonl"
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: str, **values: Any) -> None:
        """Append one line. It is with the operating system when this returns, so it outlives a killed process."""
        line = json.dumps(strict({"event": event, **values}), allow_nan=False, separators=(",", ":")) + "\n"
        remaining = line.encode()
        while remaining:
            remaining = remaining[os.write(self._file, remaining) :]


def read(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """The events in a journal from a byte offset on, each with the offset behind it. A line without its end, the last
    of a process that was killed while it wrote, is left out."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield json.loads(line), offset


class Reader:
    """Reads the journals of a run whose names fit, and goes on where it stopped."""

    def __init__(self, directory: Path, names: str = "*") -> None:
        self._directory = directory
        self._pattern = f"{names}.jsonl"
        self._offsets: dict[Path, int] = {}

    def new_events(self) -> Iterator[tuple[str, Event]]:
        """(name of the journal, event) for each line written since the last call."""
        for path in sorted(self._directory.glob(self._pattern)):
            for event, offset in read(path, self._offsets.get(path, 0)):
                self._offsets[path] = offset
                yield path.stem, event
