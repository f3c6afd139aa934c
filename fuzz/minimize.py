"""`python -m fuzz minimize`: a smaller case of the same bucket, in the dump itself.

Hypothesis shrinks the choices from which a case was drawn. Here the case itself is made smaller, field by field: at the
end of each search of a run, within its time, and by this command as long as it takes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from fuzz.buckets import BY_CHANCE, bucket_name, kind_of, telling, title
from fuzz.case import FAMILIES, NAMED, Case, promises_needed
from fuzz.checks import Verdict
from fuzz.describe import describe, device_name, traits_of, versions
from fuzz.evidence import Rig, write_evidence
from fuzz.explain import counted
from fuzz.journal import Event, strict
from fuzz.options import UsageError
from fuzz.reading import Dump, each_dump
from fuzz.replay import rig_for
from fuzz.reproducer import with_facts, write_dump
from fuzz.sanitizer.outside import Sanitized
from fuzz.strata.lengths import Runs, as_runs
from fuzz.strata.tails import TAILS
from fuzz.worker import finding_json

SECONDS = 120.0
SEEDS = 4  # small seeds to try


def minimize(paths: Iterable[Path], kernel: str | None, device: str, seconds: float | None) -> int:
    """Minimize dumps, each within `seconds`; returns the exit status, 2 if one could not be."""

    def one(dump: Dump) -> int:
        _minimize(dump, rig_for(dump, kernel, device), SECONDS if seconds is None else seconds)
        return 0

    return each_dump(paths, one)


def _minimize(dump: Dump, rig: Rig | Sanitized, seconds: float) -> None:
    if dump.directory is None:
        raise UsageError(f"{dump.path}: give the directory of a dump, to write into")
    check = dump.record.check
    search = Search(dump.case, dump.contract, _same_failure(dump, rig), seconds)
    if not search.fails(dump.case):
        raise UsageError(f"{dump.path}: {check} does not fail now; try replay")
    print(f"{dump.record.bucket}: {_spelled(dump.case)}", flush=True)
    for smaller in search.improvements():
        print(f"    {search.seconds:.0f} s, {search.tried} cases tried: {_spelled(smaller)}", flush=True)
    ended = "the time is up" if search.out_of_time else "nothing simpler fails"
    print(f"    {search.seconds:.0f} s, {search.tried} cases tried: {ended}", flush=True)
    rewrite(dump, search.best, rig)


def _same_failure(dump: Dump, rig: Rig | Sanitized) -> Callable[[Case], bool]:
    """Whether a case fails the check of a dump, for the same cause, in a row that sees keys if that one did."""
    in_empty_row = dump.record.finding.get("rows") == "empty"
    kind = kind_of(dump.record.finding)

    def fails(case: Case) -> bool:
        finding = _failure(rig.judge(case, dump.record.check)[0], dump.record.check)
        return finding is not None and (finding["rows"] == "empty", kind_of(finding)) == (in_empty_row, kind)

    return fails


def rewrite(dump: Dump, case: Case, rig: Rig | Sanitized) -> None:
    """Write `case` into the dump in the place of its own, with what the kernel does on it now.

    Raises:
        UsageError: the case does not fail any more.
    """
    assert dump.directory is not None
    check = dump.record.check
    verdict, observed = rig.judge(case, check)
    finding = _failure(verdict, check)
    if finding is None:
        raise UsageError(f"{dump.path}: the smaller case failed only once, so the dump stays as it is")
    record = replace(
        dump.record,
        bucket=bucket_name(check, traits_of(case), finding, shrunk=True),
        case=case.to_json(),
        strata=tuple(describe(case)["strata"]),
        finding=strict(finding),
        device=device_name(rig.device),
        versions=versions(),
        kernel=rig.target.spec,
    )
    with tempfile.TemporaryDirectory(prefix=".minimize-", dir=dump.directory.parent) as scratch:
        evidence = Path(scratch) / "evidence"
        profile = rig.target.profile
        write_evidence(evidence, case, check, verdict, observed, device=rig.device, profile=profile)
        write_dump(dump.directory, with_facts(record, evidence), evidence)


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
    return replace(case, **{field: value})  # type: ignore[arg-type]


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
    """A run with fewer requests, fewer queries and keys, fewer queries, fewer keys."""
    for fewer in _smaller(count):
        if fewer:
            yield fewer, q_len, kv_len
    for fewer in _smaller(q_len):
        if kv_len >= q_len - fewer:
            yield count, fewer, kv_len - q_len + fewer
        yield count, fewer, kv_len
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


def _failure(verdict: Verdict, check: str) -> Event | None:
    """What a check found, if that counts as a failure."""
    found = telling([finding_json(finding) for finding in verdict.findings])
    return next((finding for finding in found if finding["check"] == check), None)


def _spelled(case: Case) -> str:
    """A case in a line: its size, and what it needs."""
    return (
        f"{counted(case.batch, 'request', 'requests')}, {counted(case.total_q, 'query', 'queries')},"
        f" {counted(case.total_kv, 'key', 'keys')}; needs {title(traits_of(case))}"
    )
