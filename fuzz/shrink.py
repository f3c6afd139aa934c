"""A smaller case that fails alike.

Hypothesis shrinks the choices from which a case was drawn. Here the case itself is made smaller, field by field: at the
end of each search of a run, within its time, and by `python -m fuzz minimize` as long as it takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from fuzz.buckets import BY_CHANCE
from fuzz.case import FAMILIES, NAMED, Case, promises_needed
from fuzz.describe import traits_of
from fuzz.strata.lengths import TILE_KEYS, Runs, as_runs
from fuzz.strata.tails import TAILS

SEEDS = 4  # small seeds to try


class Search:
    """The search for the smallest case that fails, within some time.

    best         the smallest so far
    tried        how many cases were run
    out_of_time  whether it ended before it had tried everything
    """

    def __init__(self, case: Case, contract: frozenset[str], fails: Callable[[Case], bool], limit: float) -> None:
        self.best = case
        self.tried = 0
        self.out_of_time = False
        self._contract = contract
        self._fails = fails
        self._start = time.monotonic()
        self._limit = limit
        self._seen: set[Case] = set()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def fails(self, case: Case) -> bool:
        """Run a case."""
        self.tried += 1
        self._seen.add(case)
        return self._fails(case)

    def smallest(self) -> Case:
        """The best case, once there is no simpler one or no time."""
        for _better in self.improvements():
            pass
        return self.best

    def improvements(self) -> Iterator[Case]:
        """Each case that becomes the best one, until there is no simpler one or no time."""
        while (smaller := self._step()) is not None:
            self.best = smaller
            yield smaller

    def _step(self) -> Case | None:
        """A simpler case than the best one that fails."""
        for case in simpler(self.best):
            if case in self._seen or not self._may_replace(case):
                continue
            if self.seconds > self._limit:
                self.out_of_time = True
                return None
            if self.fails(case):
                return case
        return None

    def _may_replace(self, case: Case) -> bool:
        """Whether a case, if it fails, is the same failure in less: it has no trait that the best one has not."""
        return (
            case.size < self.best.size
            and promises_needed(case) <= self._contract
            and traits_of(case) - traits_of(self.best) <= BY_CHANCE
        )


def simpler(case: Case) -> Iterator[Case]:
    """Cases that may be simpler, the boldest steps first."""
    yield Case(case.lengths, seed=case.seed)
    for runs in _fewer(case.lengths):
        yield replace(case, lengths=runs)
    for family in NAMED:
        names = _names(family)
        for name in names[: names.index(getattr(case, family))]:
            yield _with(case, family, name)
    for tail in TAILS:
        for count in _smaller(getattr(case, tail)):
            yield _with(case, tail, count)
    for i, (count, q_len, kv_len) in enumerate(case.lengths):
        for run in _shorter(count, q_len, kv_len):
            yield replace(case, lengths=as_runs((*case.lengths[:i], run, *case.lengths[i + 1 :])))
    for seed in range(SEEDS):
        yield replace(case, seed=seed)


def _with(case: Case, field: str, value: str | int) -> Case:
    return Case.from_json(case.to_json() | {field: value})


def _names(family: str) -> list[str]:
    return list(FAMILIES[family])


def _fewer(runs: Runs) -> Iterator[Runs]:
    """The runs without a part of them: all, halves, quarters, and so on to each single one."""
    size = len(runs)
    while size:
        for start in range(0, len(runs), size):
            yield as_runs((*runs[:start], *runs[start + size :]))
        size = (size + 1) // 2 if size > 1 else 0


def _shorter(count: int, q_len: int, kv_len: int) -> Iterator[tuple[int, int, int]]:
    """A run with fewer requests, fewer queries and keys, fewer queries, fewer keys: whole tiles of them, so that the
    last one stays as full as it was, then any number."""
    for fewer in _smaller(count):
        if fewer:
            yield fewer, q_len, kv_len
    for fewer in _smaller(q_len):
        if kv_len >= q_len - fewer:
            yield count, fewer, kv_len - q_len + fewer
        yield count, fewer, kv_len
    for tiles in _smaller(kv_len // TILE_KEYS):
        yield count, q_len, tiles * TILE_KEYS + kv_len % TILE_KEYS
    for fewer in _smaller(kv_len):
        yield count, q_len, fewer


def _smaller(number: int) -> Iterator[int]:
    """0, 1, and numbers that come closer to `number` by half the distance each time."""
    step, last = number, -1
    for smaller in (0, 1):
        if last < smaller < number:
            last = smaller
            yield smaller
    while step > 1:
        step //= 2
        if number - step > last:
            last = number - step
            yield last
