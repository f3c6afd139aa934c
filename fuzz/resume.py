"""Going on with a run that was interrupted or killed, or that the loss of a machine ended: all that it takes is in its
journals, wherever they are now."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fuzz import outdir
from fuzz.journal import Event, Journal, read
from fuzz.options import ALL, UsageError
from fuzz.run import Run
from fuzz.totals import GENERATE
from fuzz.units import Board

_ENDINGS = ("died", "hung")  # of workers that the kernel ended


@dataclass(slots=True)
class _Worker:
    """What the journal of a worker says: when the first case of each of its units began, and whether it is in one."""

    units: dict[int, float] = field(default_factory=dict)
    in_case: bool = False


@dataclass(slots=True)
class Left:
    """What the journals of a run, or of a shard, hold.

    elapsed  seconds since its start of the last case
    """

    workers: dict[str, _Worker] = field(default_factory=dict)
    elapsed: float = 0.0
    ended_by_kernel: set[str] = field(default_factory=set)

    def hear(self, name: str, event: Event) -> None:
        """Take in an event of the journal `name`."""
        if event["event"] in _ENDINGS:
            self.ended_by_kernel.add(event["worker"])
        elif event["event"] == "case":
            worker = self.workers.setdefault(name, _Worker())
            worker.in_case = True
            self.elapsed = max(self.elapsed, event["at"])
            if event["phase"] == GENERATE:
                worker.units.setdefault(event["unit"], event["at"])
        elif event["event"] in ("verdict", "lost"):
            self.workers.setdefault(name, _Worker()).in_case = False

    def in_flight(self) -> list[str]:
        """The workers that were in a case when something other than the kernel ended them."""
        return [
            name for name, worker in self.workers.items() if worker.in_case and name not in self.ended_by_kernel
        ]

    def units(self) -> tuple[dict[int, list[str]], set[int]]:
        """(unit -> its workers in order, units that may not be done), see `fuzz.units.Board.take_up`."""
        began: dict[int, list[tuple[float, str]]] = {}
        for name, worker in self.workers.items():
            for unit, at in worker.units.items():
                began.setdefault(unit, []).append((at, name))
        seen = {unit: [name for _, name in sorted(workers)] for unit, workers in began.items()}
        units = [worker.units for worker in self.workers.values() if worker.units]
        return seen, {max(own, key=own.__getitem__) for own in units}


def heard(paths: Iterable[Path]) -> Left:
    """What journals hold. A line without its end, which would spoil the next one, is cut off."""
    left = Left()
    for path in paths:
        whole = 0
        for event, behind in read(path):
            left.hear(path.stem, event)
            whole = behind
        if whole < path.stat().st_size:
            os.truncate(path, whole)
    return left


CLUSTER = "cluster.json"  # in the journals of a run on a cluster
_CHANGEABLE = {"resume", "ray", "max_time", "max_failures"}


def continued(values: Mapping[str, Any], now: float) -> Run:
    """The run in the directory `values["resume"]`, which the caller has locked, ready to be gone on with.

    values  what the user gave, by field: besides --resume only limits, which hold in place of the earlier ones
    now     when this part of the run started, in the time of time.monotonic

    Raises:
        UsageError: there is no run that can be gone on with, or an option cannot be changed.
    """
    run, _ = outdir.load(values["resume"])
    if (run.journals / CLUSTER).exists():
        raise UsageError(f"--resume {run.directory}: it was a run on a cluster; `python -m fuzz run` goes on with it")
    check_options(values)
    return changed(run, _take_up(run), values, now)


def check_options(values: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that cannot be given with --resume."""
    if fixed := [option.flag for option in ALL if option.field in values.keys() - _CHANGEABLE]:
        raise UsageError(f"--resume {values['resume']}: {', '.join(fixed)} cannot change, the run keeps its options")


def changed(run: Run, elapsed: float, values: Mapping[str, Any], now: float) -> Run:
    """A run that had lasted `elapsed` seconds, as it goes on; see `continued` for the others."""
    most = values.get("max_failures", run.options.max_failures)
    options = replace(run.options, out=run.directory, max_failures=most)
    if "max_time" in values:
        options = replace(options, max_time=elapsed + values["max_time"])
    elif options.max_time is not None and elapsed >= options.max_time:
        raise UsageError(f"--resume {run.directory}: its {options.max_time:g} s are over; --max-time gives it more")
    started = now - elapsed
    deadline = None if options.max_time is None else started + options.max_time
    return replace(run, options=options, started=started, deadline=deadline, resumed=run.resumed + 1)


def _take_up(run: Run) -> float:
    """Make the journals of a run that ended early those of one that goes on. Returns the seconds that it had lasted."""
    left = heard(sorted(run.journals.glob("*.jsonl")))
    for name in left.in_flight():
        Journal(run.journals, name).write("lost", why="the run was killed")
    Board(run.journals, run.options.max_cases, run.options.shard).take_up(*left.units())
    (run.journals / "stop").unlink(missing_ok=True)
    Journal(run.journals, "controller").write("resumed")
    return left.elapsed
