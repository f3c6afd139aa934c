"""The property that a fuzz run explores: on every case, the kernel under test keeps what its contract promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from fuzz.case import Case
from fuzz.checks import Verdict, is_made
from fuzz.checks.invariance import INVARIANCES
from fuzz.describe import describe
from fuzz.evidence import write_evidence
from fuzz.journal import Event
from fuzz.rig import Rig
from fuzz.room import Room
from fuzz.run import Run
from fuzz.sandbox import open_kernel
from fuzz.sanitizer.outside import SMALL, Sanitized
from fuzz.shrink import Search
from fuzz.strata.reach import reach
from fuzz.strata.strategy import exclusion
from fuzz.terms import drawn, promises


class Property:
    """The property as one worker of a run explores it: how cases are drawn, judged, kept and made smaller.

    strategy  draws cases
    rig       the kernel under test, with the promises that it is held to
    reach     all strata, each with the reason why it is never drawn or ""

    Raises:
        UsageError: the kernel cannot be loaded, there are no such promises or strata, or no compute-sanitizer.
    """

    def __init__(self, run: Run) -> None:
        options, claim = run.options, run.options.claim
        self._room = Room(run.device, run.sharing, run.journals)
        contract = promises(claim.contract, claim.without)
        budget = SMALL if options.sanitize else self._room.budget
        self.strategy = drawn(contract, options.strata, budget)
        self.rig: Rig | Sanitized
        if options.sanitize:
            self.rig = Sanitized.of(options.sanitize, options.kernel, claim.profile, contract, run.device)
        else:
            target = open_kernel(options.kernel, claim.profile, run.device, options.sandbox)
            self.rig = Rig(target, run.device, contract)
        self.reach = reach(contract, options.strata, budget)
        if run.device == "cpu":
            torch.set_num_threads(1)

    def describe(self, case: Case) -> Event:
        """A case's part of a journal line: case (JSON), strata, traits, size."""
        return describe(case)

    def judge(self, case: Case, also: frozenset[str]) -> Verdict:
        """The verdict on a case, with the checks `also` among those that are made."""
        with self._room.taken(case):
            return self.rig.verdict(case, also & INVARIANCES.keys())

    def keep(self, case: Case, check: str, place: Path) -> Verdict:
        """Judge a case that failed a check once more, and make the directory `place` with the evidence of it."""
        rig = self.rig
        with self._room.taken(case):
            again, observed = rig.judge(case, check)
            write_evidence(place, case, check, again, observed, device=rig.device, profile=rig.target.profile)
            return again

    def revive(self, value: Event, check: str) -> Case:
        """A case that failed a check, from its JSON. Raises ValueError if it may not run, or the check is not made."""
        case = Case.from_json(value)
        reason = exclusion(case, self.rig.contract, self._room.budget)
        if not is_made(check, self.rig.contract):
            reason = f"the contract makes no promise for {check} to check"
        if reason:
            raise ValueError(reason)
        return case

    def simplify(self, case: Case, fails: Callable[[Case], bool], seconds: float) -> None:
        """Look for the smallest case for which `fails`, so long."""
        Search(case, self.rig.contract, fails, seconds).smallest()
