"""`python -m fuzz replay`: does a failure that was dumped still happen?"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fuzz.checks import Finding, Verdict
from fuzz.demands import UNDER_A_TOOL
from fuzz.describe import device_name
from fuzz.files import number
from fuzz.options import DEFAULT_KERNEL, UsageError
from fuzz.reading import Dump, check_memory, each_dump
from fuzz.rig import Rig
from fuzz.sandbox import open_kernel
from fuzz.sanitizer.outside import Sanitized

RUNS = 5  # of each case; after PATIENCE seconds, two are enough
PATIENCE = 60.0
FIXED, FAILED, FLAKY = "FIXED", "FAILED", "FLAKY"


class Answer(NamedTuple):
    """FIXED, FAILED or FLAKY, and why, a line each."""

    verdict: str
    lines: list[str]


def replay(paths: Iterable[Path], kernel: str | None, device: str) -> int:
    """Replay dumps and print an answer for each; returns the exit status: 0 all FIXED, 1 one FAILED or FLAKY, 2 one
    could not be replayed."""

    def one(dump: Dump) -> int:
        answer = run_again(dump, rig_for(dump, kernel, device))
        place = dump.directory or dump.path
        print("\n    ".join([f"{answer.verdict} {dump.record.bucket} ({place})", *answer.lines]), flush=True)
        return int(answer.verdict != FIXED)

    return each_dump(paths, one)


def rig_for(dump: Dump, kernel: str | None, device: str) -> Rig | Sanitized:
    """The kernel that a dump is to be run with, under compute-sanitizer if that had seen the failure.

    Raises:
        UsageError: it cannot be loaded, the machine cannot hold the case, the kernel is not ours and was not named, or
            there is no compute-sanitizer.
    """
    recorded = dump.record.kernel
    if kernel is None and recorded != DEFAULT_KERNEL:
        raise UsageError(
            f"{dump.path}: it was recorded with another kernel, and a dump may not choose what is run here:"
            f" add --kernel {recorded}"
        )
    check_memory(dump, device)
    if dump.record.check in UNDER_A_TOOL:
        record = dump.record
        return Sanitized.of(record.check, kernel or recorded, record.profile, dump.contract, device)
    return Rig(open_kernel(kernel or recorded, dump.record.profile, device), device, dump.contract)


def run_again(dump: Dump, rig: Rig | Sanitized) -> Answer:
    """Run the case of a dump a few times and compare what is found with what was recorded."""
    check = dump.record.check
    verdicts: list[Verdict] = []
    start = time.monotonic()
    while len(verdicts) < RUNS and (len(verdicts) < 2 or time.monotonic() - start < PATIENCE):
        try:
            verdicts.append(rig.judge(dump.case, check)[0])
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UsageError(f"{dump.path}: it cannot be judged: {reason} ({last.name})") from error
    return _answer(dump, verdicts, device_name(rig.device))


def _answer(dump: Dump, verdicts: list[Verdict], device: str) -> Answer:
    check, runs = dump.record.check, len(verdicts)
    again = [finding for verdict in verdicts for finding in verdict.findings if finding.check == check]
    failing = sum(any(finding.check == check for finding in verdict.findings) for verdict in verdicts)
    others = [finding for verdict in verdicts for finding in verdict.findings if finding.check != check]
    any_failing = sum(verdict.failed for verdict in verdicts)
    lines = [f"{check} failed in {failing} of {runs} runs on {device}"]
    if failing:
        lines.append(str(again[0]))
        lines += [_compared(again[0], dump)]
    if others:
        lines.append(f"other checks fail too: {others[0]}" if failing else f"another check fails now: {others[0]}")
    if not any_failing:
        return Answer(FIXED, lines)
    return Answer(FAILED if failing == runs or (not failing and any_failing == runs) else FLAKY, lines)


def _compared(found: Finding, dump: Dump) -> str:
    """How a finding differs from the one that was recorded."""
    recorded = dump.record.finding
    where = f"recorded on {dump.record.device}"
    index = None if recorded.get("index") is None else tuple(recorded["index"])
    if index == found.index and str(number(recorded.get("got"))) == str(found.got):
        return f"{where}: the same"
    if index == found.index:
        return f"{where}: the same element, got {recorded.get('got')} then"
    return f"{where}: at {recorded.get('index')}, got {recorded.get('got')}"
