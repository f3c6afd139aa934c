"""What the shards of a run have found so far: their journals, as they come, in one directory and in one `Totals`.

The journal of a shard's worker is DIR/journal/<shard>-<worker>.jsonl, with times from the start of the whole run. It is
a directory like that of any run: `report` and `merge` take it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from fuzz.cluster.host import News
from fuzz.journal import Event, Journal, read
from fuzz.merge import OWN, Told, renamed
from fuzz.resume import heard
from fuzz.run import Run
from fuzz.totals import Totals

_NAME = re.compile(r"(\d+)-(?:r(\d+)-)?")  # of a journal: the shard and how often it was resumed
KNOWN = "known.found.jsonl"


class Gathered:
    """The findings of a run. `done` are the shards that are complete."""

    def __init__(self, run: Run) -> None:
        self.totals = Totals(run.journals)
        self.done: set[int] = set()
        self.begun: dict[int, int] = {}  # shard of which there are journals -> how often it was resumed
        self.journal = Journal(run.journals, "driver")
        self._run = run
        self._told = Told()
        self._machines: Event = {}
        self._shifts: dict[int, float] = {}
        self._shrunk: list[bytes] = []

    def take_up(self) -> float:
        """Begin with what an earlier driver had gathered. Returns how long its run had lasted, in seconds."""
        self.journal.write("resumed")
        for event, _ in read(self.journal.path):
            if event["event"] == "ended":
                self.done.add(event["shard"])
            self._told.hear(event)
        for path in self._run.journals.glob("*.jsonl"):
            self._note(path.name)
            if path.name.endswith(".found.jsonl"):
                self._shrunk += [json.dumps(event).encode() + b"\n" for event, _ in read(path)]
        unfinished = self.begun.keys() - self.done
        for shard in unfinished:
            heard(self._paths(shard))  # cuts off half lines
        self.totals.update()
        for shard in unfinished:
            self.lose(shard, "the driver was lost")
        return self.totals.elapsed

    def left(self, shard: int, at: float) -> dict[str, bytes]:
        """The journals with which a shard begins, `at` seconds after the start of the run: its own, if it was begun
        before, and what searches have led to in others."""
        paths = self._paths(shard) if shard in self.begun else []
        self._shifts[shard] = at - heard(paths).elapsed
        return {path.name: path.read_bytes() for path in paths} | {KNOWN: b"".join(self._shrunk)}

    def take(self, shard: int, news: News) -> None:
        """Take in what a shard wrote."""
        for name, evidence in news.evidence.items():
            self._keep(name, evidence)
        for name, lines in news.lines.items():
            own = f"{shard}-{name}"
            self._note(own)
            with (self._run.journals / own).open("ab") as file:
                file.writelines(self._lines(shard, own.removesuffix(".jsonl"), lines))
        self.totals.settle()

    def lose(self, shard: int, why: str) -> None:
        """Say that the workers of a shard are lost, so that the cases they were in are run again."""
        for name in heard(self._paths(shard)).in_flight():
            Journal(self._run.journals, name).write("lost", why=why)
            self.totals.take(name, {"event": "lost", "why": why})

    def finish(self, shard: int) -> None:
        """Say that a shard is complete."""
        self.done.add(shard)
        self._shifts.pop(shard, None)
        self.write("ended", shard=shard)

    def write(self, event: str, **values: object) -> None:
        """Add an event of the driver's own."""
        self.journal.write(event, **values)
        self.totals.take("driver", {"event": event, **values})

    def _lines(self, shard: int, name: str, lines: bytes) -> Iterator[bytes]:
        for line in lines.splitlines(keepends=True):
            event = json.loads(line)
            if event["event"] == "case":
                event["at"] = round(event["at"] + self._shifts[shard], 3)
                line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
            elif event["event"] != "verdict":
                self._hear(event)
                if event["event"] in OWN:
                    continue
                line = renamed(event, f"{shard}-")
                if event["event"] == "shrunk":
                    self._shrunk.append(line)
            self.totals.take(name, event)
            yield line

    def _hear(self, event: Event) -> None:
        self._told.hear(event)
        if event["event"] == "device" and self._told.machines() != self._machines:
            self._machines = self._told.machines()
            self.write(**self._machines)

    def _keep(self, name: str, evidence: dict[str, bytes]) -> None:
        place = self._run.evidence / name
        part = place.with_name(f".{name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for file, data in evidence.items():
            (part / file).write_bytes(data)
        shutil.rmtree(place, ignore_errors=True)
        part.rename(place)

    def _note(self, journal: str) -> None:
        if match := _NAME.match(journal):
            shard = int(match[1])
            self.begun[shard] = max(self.begun.get(shard, 0), int(match[2] or 0))

    def _paths(self, shard: int) -> list[Path]:
        return sorted(self._run.journals.glob(f"{shard}-*.jsonl"))
