"""One mutant against the fuzzer's cases, until a check fails. Runs in a process of its own.

The process may hang, or die of what the mutant does to its memory: so it keeps a journal.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzz.case import Case
from fuzz.checks import judge
from fuzz.checks.invariance import INVARIANCES
from fuzz.describe import traits_of
from fuzz.journal import Journal
from fuzz.loading import load
from fuzz.mutants.edit import Sources
from fuzz.mutants.mutant import BROKEN, CASE, KILLED, PASSED, SHRUNK, SURVIVED
from fuzz.mutants.package import load_mutant
from fuzz.mutants.reach import watched
from fuzz.options import UsageError
from fuzz.room import Room
from fuzz.shrink import Search
from fuzz.strata.strategy import exclusion
from fuzz.target import Target
from kernel.contract import CONTRACTS

CONTRACT = CONTRACTS["hardened"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What one mutant may cost, in seconds: all cases, one case, the search for a smaller one.

    All cases are timed as `attack` times them; the other two go by the clock on the wall.
    """

    seconds: float
    case_seconds: float
    shrink_seconds: float

    @classmethod
    def of(cls, device: str, cases: int) -> Budget:
        """On a GPU the first case of each variant waits for the compiler."""
        return cls(120 + cases / 2, 120, 5) if device == "cuda" else cls(30 + cases, 90, 5)


def warm_up() -> None:
    """Judge a case on the CPU, so that processes forked after it need not import what that takes: 1.5 s for each."""
    torch.set_num_threads(1)  # before there are others, which a fork would lose
    judge(Case(((1, 2, 20), (1, 1, 200))), load(), contract=CONTRACT)


def attack(
    changed: Sources,
    cases: Sequence[Case],
    turns: Sequence[int],
    device: str,
    sharing: int,
    budget: Budget,
    journal: Journal,
) -> None:
    """Judge a mutant on those of `cases` whose numbers, from 1, are in `turns`, in that order, until one fails.

    `sharing` processes do so on one device. Seconds are those of this process on a CPU, whatever else that does.
    """
    torch.set_num_threads(1)
    room = Room(device, sharing, journal.path.parent)
    clock = time.monotonic if device == "cuda" else time.process_time
    start, tried = clock(), 0
    with tempfile.TemporaryDirectory() as directory:
        try:
            target = load_mutant(changed, Path(directory))
        except UsageError as error:
            journal.write(KILLED, seconds=0.0, checks=["alive"], traits=[], message=f"alive: {error}")
            return
        for number in turns:
            case, began = cases[number - 1], clock()
            if began - start > budget.seconds:
                break
            tried += 1
            if exclusion(case, CONTRACT, room.budget):
                continue  # the GPU is smaller than one of the budget that it was drawn for
            journal.write(CASE, number=number, case=case.to_json())
            try:
                with room.taken(case), watched() as reached:
                    verdict = judge(case, target, device=device, contract=CONTRACT)
            except Exception:
                # What a kernel raises is a finding. This is the judge's own, and no kill.
                journal.write(BROKEN, message=traceback.format_exc())
                return
            if verdict.failed:
                checks = sorted({finding.check for finding in verdict.findings})
                traits, message = sorted(traits_of(case)), str(verdict.findings[0])
                journal.write(KILLED, seconds=clock() - start, checks=checks, traits=traits, message=message)
                if budget.shrink_seconds:
                    smallest = shrunk(case, checks[0], target, device, room, budget.shrink_seconds)
                    journal.write(SHRUNK, case=smallest.to_json())
                return
            journal.write(PASSED, number=number, seconds=round(clock() - began, 3), places=sorted(reached))
        journal.write(SURVIVED, seconds=clock() - start, message=_told(tried, len(turns), len(cases)))


def _told(tried: int, turns: int, cases: int) -> str:
    """What a survivor was tried on."""
    late = f", {turns - tried} not for lack of time" if tried < turns else ""
    unfit = f", {cases - turns} cannot show it" if turns < cases else ""
    return f"{tried} of {cases} cases tried{late}{unfit}"


def shrunk(case: Case, check: str, target: Target, device: str, room: Room, seconds: float) -> Case:
    """The smallest case that fails the same check, as far as the time goes."""
    also = {check} & INVARIANCES.keys()

    def fails(smaller: Case) -> bool:
        with room.taken(smaller):
            findings = judge(smaller, target, device=device, contract=CONTRACT, also=also).findings
        return check in {finding.check for finding in findings}

    return Search(case, CONTRACT, fails, seconds).smallest()
