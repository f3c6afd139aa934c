"""The work of a run, cut into numbered units that any worker can do.

Unit u is one Hypothesis run of a fixed number of cases, seeded by the run's seed and u. So the same seed gives the same
cases with any number of workers, and no worker is idle while there is a unit left. A unit can be done again without
calling the kernel, from the verdicts that were written down: that is how a search for a smaller case begins, and how a
unit whose worker died is taken up where it stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import hypothesis
from hypothesis import Phase, Verbosity
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from hypothesis.strategies import SearchStrategy

from fuzz.files import write_text
from fuzz.options import WHOLE, Shard

CASES = 32

Drawn = TypeVar("Drawn")


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of work: its number, how many cases it has, and the workers that died while they had it."""

    number: int
    cases: int
    died: tuple[str, ...] = ()


class Board:
    """Hands out the units of a run to its workers, through a file in the run's directory. Of a shard i/n it has
    those whose number is i mod n; all shards together have `max_cases`."""

    def __init__(self, directory: Path, max_cases: int | None, shard: Shard = WHOLE) -> None:
        self._path = directory / "units.json"
        self._lock = directory / "units.lock"
        self._max_cases = max_cases
        self._shard = shard

    def claim(self, worker: str) -> Unit | None:
        """The next unit for a worker: one that a dead worker left, else a new one; None when all are given out."""
        with locked(self._lock), self._state() as state:
            for number, owners in state["open"].items():
                if not (owners and _is_alive(owners[-1]["pid"])):
                    died = tuple(owner["worker"] for owner in owners)
                    owners.append({"worker": worker, "pid": os.getpid()})
                    return Unit(int(number), self._cases(int(number)), died)
            number = state["next"]
            if self._cases(number) == 0:
                return None
            state["next"] += self._shard.count
            state["open"][str(number)] = [{"worker": worker, "pid": os.getpid()}]
            return Unit(number, self._cases(number))

    def done(self, unit: Unit) -> None:
        """Say that a unit is finished, so that nobody takes it up again."""
        with locked(self._lock), self._state() as state:
            del state["open"][str(unit.number)]

    def _cases(self, number: int) -> int:
        if self._max_cases is None:
            return CASES
        return max(0, min(CASES, self._max_cases - number * CASES))

    def is_empty(self) -> bool:
        """Whether all units are done."""
        with locked(self._lock), self._state() as state:
            return not state["open"] and self._cases(state["next"]) == 0

    def take_up(self, seen: dict[int, list[str]], unfinished: Set[int]) -> None:
        """Begin with the units of a run that ended early: `seen` are those that were given out, each with the workers
        that had it, in order; `unfinished` those of them that may not be done."""
        # a worker may have had one before it wrote a line, while another one went on to the next
        following = max(seen, default=self._shard.index - self._shard.count) + self._shard.count
        given_out = range(self._shard.index, following, self._shard.count)
        left = {number: seen.get(number, []) for number in given_out if number in unfinished or number not in seen}
        open_units = {number: [{"worker": worker, "pid": 0} for worker in workers] for number, workers in left.items()}
        write_text(self._path, json.dumps({"next": following, "open": open_units}))

    @contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        state = json.loads(self._path.read_text()) if self._path.exists() else {"next": self._shard.index, "open": {}}
        yield state
        write_text(self._path, json.dumps(state))


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file, which the system releases if the process dies; False if it is taken and `wait` is not set."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def _is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie, dead but not yet waited for, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def seed_of(run_seed: int, number: int) -> int:
    """The seed of a unit: unrelated for neighbouring units and neighbouring run seeds."""
    return int.from_bytes(hashlib.sha256(f"{run_seed}/{number}".encode()).digest()[:8], "big")


def explore(
    strategy: SearchStrategy[Drawn], seed: int, cases: int, body: Callable[[Drawn], None], *, shrink: bool
) -> None:
    """Call `body` with `cases` cases, the same ones for the same seed, as long as it makes the same calls of
    `hypothesis.target` for them. With `shrink`, an exception of `body` ends the exploration and begins the search for
    a smaller case with the same exception, which is raised in the end. A BaseException ends either at once.
    """
    # Phases are the same up to shrinking, and the database is left out, because both have a say in what is generated.
    phases = (Phase.generate, Phase.target, Phase.shrink) if shrink else (Phase.generate, Phase.target)
    settings = hypothesis.settings(
        max_examples=cases,
        derandomize=False,
        database=None,
        verbosity=Verbosity.quiet,
        phases=phases,
        stateful_step_count=50,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        deadline=None,
        print_blob=False,
        backend="hypothesis",
    )

    @hypothesis.seed(seed)
    @settings
    @hypothesis.given(strategy)
    def unit(case: Drawn) -> None:
        body(case)

    with _no_constants_of_the_program():
        unit()


@contextmanager
def _no_constants_of_the_program() -> Iterator[None]:
    """Keep Hypothesis from drawing constants that it finds in the source of whatever modules are loaded at the moment:
    cases would depend on the kernel under test, and on what a worker happens to have imported."""
    with mock.patch.object(providers, "_get_local_constants", Constants):
        providers.CONSTANTS_CACHE.cache.clear()
        try:
            yield
        finally:
            providers.CONSTANTS_CACHE.cache.clear()
