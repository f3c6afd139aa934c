"""`python -m fuzz minimize`: a smaller case of the same bucket, in the dump itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from fuzz.buckets import bucket_name, kind_of, telling, title
from fuzz.case import Case
from fuzz.checks import Verdict
from fuzz.describe import describe, device_name, traits_of, versions
from fuzz.evidence import write_whole_dump
from fuzz.files import strict
from fuzz.journal import Event
from fuzz.options import UsageError
from fuzz.reading import Dump, each_dump
from fuzz.replay import rig_for
from fuzz.rig import Rig
from fuzz.sanitizer.outside import Sanitized
from fuzz.shrink import Search
from fuzz.words import counted

SECONDS = 120.0


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
    write_whole_dump(dump.directory, record, case, verdict, observed, device=rig.device, profile=rig.target.profile)


def _failure(verdict: Verdict, check: str) -> Event | None:
    """What a check found, if that counts as a failure."""
    found = telling(verdict.to_json()["findings"])
    return next((finding for finding in found if finding["check"] == check), None)


def _spelled(case: Case) -> str:
    """A case in a line: its size, and what it needs."""
    return (
        f"{counted(case.batch, 'request')}, {counted(case.total_q, 'query', 'queries')},"
        f" {counted(case.total_kv, 'key')}; needs {title(traits_of(case))}"
    )
