"""What a node does for a run: it does shards, one after the other, and hands over what they write. An actor of Ray, but
nothing here knows of Ray."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz import outdir
from fuzz.cluster.leash import SAID, STATUS
from fuzz.files import write_text
from fuzz.run import Run

_INTERVAL = 0.05
_MOST_SAID = 2000  # characters of what a shard printed


@dataclass(frozen=True, slots=True)
class Order:
    """A shard to do.

    run        Run.to_json of it
    journals   what earlier attempts left of it: name of the file -> its lines
    processes  workers
    seconds    that it may take, or None
    program    what Python runs it with: -m fuzz
    place      the directory to run it in, the driver's own
    """

    run: dict[str, Any]
    journals: dict[str, bytes]
    processes: int
    seconds: float | None
    program: tuple[str, ...]
    place: str


@dataclass(frozen=True, slots=True)
class News:
    """What a shard wrote since the last news.

    lines     name of the journal -> whole lines
    evidence  directory of evidence -> name of the file -> its bytes
    ended     exit status, once there will be no more news
    stopped   why it stopped then, as its summary says; None if it left none
    said      the last lines that it printed then
    """

    lines: dict[str, bytes] = field(default_factory=dict)
    evidence: dict[str, dict[str, bytes]] = field(default_factory=dict)
    ended: int | None = None
    stopped: str | None = None
    said: str = ""


class Host:
    """Does one shard at a time."""

    def __init__(self) -> None:
        self._leash: int | None = None  # a pipe to it
        self._directory = Path()
        self._offsets: dict[str, int] = {}
        self._sent: set[str] = set()

    def where(self) -> str:
        """The name of the node."""
        return socket.gethostname()

    def start(self, order: Order) -> None:
        """Begin a shard. Raises OSError where the node has no such place."""
        self.drop()
        os.chdir(order.place)
        self._directory = Path(tempfile.gettempdir(), f"mla-fuzz-shard-{uuid.uuid4().hex}")
        limit = [] if order.seconds is None else ["--max-time", f"{order.seconds:.2f}"]
        command = [*order.program, "run", "--resume", str(self._directory), "-n", str(order.processes), *limit]
        far, self._leash = os.pipe()
        subprocess.run(
            [sys.executable, "-m", "fuzz.cluster.leash", str(self._directory), sys.executable, *command],
            stdin=far,
            env={name: value for name, value in os.environ.items() if not name.startswith("MLA_FUZZ_")},
            check=True,
        )
        os.close(far)
        run = dataclasses.replace(Run.from_json(order.run), directory=self._directory)
        run.journals.mkdir()
        outdir.save(run)
        for name, lines in order.journals.items():
            (run.journals / name).write_bytes(lines)
        self._offsets = dict.fromkeys(order.journals, -1)
        self._sent = set()
        os.write(self._leash, b".")

    def news(self, seconds: float) -> News:
        """What was written since the last call, after some seconds, or sooner if the shard ends."""
        until = time.monotonic() + seconds
        while (ended := self._ended()) is None and time.monotonic() < until:
            time.sleep(_INTERVAL)
        evidence = self._new_evidence()
        if evidence and ended is not None:
            ended = None  # there may be more of it
        lines = dict(self._new_lines())
        if ended is None:
            return News(lines, evidence)
        return News(lines, evidence, ended, self._stopped(), self._said())

    def stop(self, when: str) -> None:
        """Make the workers of the shard stop, see Run.stop."""
        if self._directory.exists():
            write_text(self._directory / "journal" / "stop", when)

    def drop(self) -> None:
        """Leave nothing of the shard."""
        if self._leash is not None:
            os.close(self._leash)
            self._leash = None

    def _ended(self) -> int | None:
        """The exit status of the shard, if it has ended; SIGKILL's if somebody killed the leash."""
        assert self._leash is not None
        with contextlib.suppress(FileNotFoundError):
            return int((self._directory / STATUS).read_text())
        try:
            os.write(self._leash, b".")
        except BrokenPipeError:
            return -signal.SIGKILL
        return None

    def _new_lines(self) -> Iterator[tuple[str, bytes]]:
        # in the order of fuzz.journal.Reader: what a worker wrote before its death is read after the line that tells it
        for path in sorted((self._directory / "journal").glob("*.jsonl")):
            offset = self._offsets.get(path.name, 0)
            if offset < 0:
                continue  # of an earlier attempt
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            if whole:
                self._offsets[path.name] = offset + len(whole)
                yield path.name, whole

    def _new_evidence(self) -> dict[str, dict[str, bytes]]:
        """A directory that is new and complete, if there is one: its tensors may be large."""
        for place in sorted((self._directory / "journal" / "evidence").glob("[!.]*")):
            if place.name not in self._sent:
                self._sent.add(place.name)
                return {place.name: {path.name: path.read_bytes() for path in place.iterdir()}}
        return {}

    def _stopped(self) -> str | None:
        try:
            stopped: str | None = json.loads((self._directory / "summary.json").read_text())["stopped"]
        except (OSError, ValueError):
            return None
        return stopped

    def _said(self) -> str:
        with contextlib.suppress(OSError):
            return (self._directory / SAID).read_text(errors="replace")[-_MOST_SAID:]
        return ""
