"""The property that a fuzz run explores: on every case, the kernel under test keeps what its contract promises."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fuzz.case import Case
from fuzz.checks import Verdict, is_made
from fuzz.checks.invariance import INVARIANCES
from fuzz.describe import describe, device_name, versions
from fuzz.evidence import Rig, write_evidence
from fuzz.journal import Event
from fuzz.minimize import Search
from fuzz.options import UsageError
from fuzz.room import Room
from fuzz.run import Run
from fuzz.sandbox import open_kernel
from fuzz.sanitizer.outside import SMALL, Sanitized
from fuzz.sanitizer.work import SanitizedWorker
from fuzz.strata.reach import reach
from fuzz.strata.strategy import exclusion
from fuzz.terms import drawn, promises
from fuzz.worker import Worker


def test_kernel_keeps_its_promises(fuzz_run: Run, fuzz_worker: str, shard: int):
    worker = Worker(fuzz_run, fuzz_worker)
    options, claim = fuzz_run.options, fuzz_run.options.claim
    room = Room(fuzz_run.device, fuzz_run.sharing, fuzz_run.journals)
    budget = SMALL if options.sanitize else room.budget
    refused: UsageError | None = None
    try:
        contract = promises(claim.contract, claim.without)
        strategy = drawn(contract, options.strata, budget)
        rig: Rig | Sanitized
        if options.sanitize:
            rig = Sanitized.of(options.sanitize, options.kernel, claim.profile, contract, fuzz_run.device)
            worker = SanitizedWorker(fuzz_run, fuzz_worker, rig)
        else:
            target = open_kernel(options.kernel, claim.profile, fuzz_run.device, options.sandbox)
            rig = Rig(target, fuzz_run.device, contract)
    except UsageError as error:
        refused = error
    if refused is not None:  # outside of the handler, or pytest tells the error once for each that led to it
        worker.refuse(refused)

    if fuzz_run.device == "cpu":
        torch.set_num_threads(1)
    worker.tell(device_name(fuzz_run.device), versions(), reach(contract, options.strata, budget))

    def verdict(case: Case, also: frozenset[str]) -> Verdict:
        with room.taken(case):
            return rig.verdict(case, also & INVARIANCES.keys())

    def keep(case: Case, check: str, place: Path) -> Verdict:
        with room.taken(case):
            again, observed = rig.judge(case, check)
            write_evidence(place, case, check, again, observed, device=fuzz_run.device, profile=rig.target.profile)
            return again

    def revive(value: Event, check: str) -> Case:
        case = Case.from_json(value)
        reason = exclusion(case, contract, room.budget)
        if not is_made(check, contract):
            reason = f"the contract makes no promise for {check} to check"
        if reason:
            raise ValueError(reason)
        return case

    def simplify(case: Case, fails: Callable[[Case], bool], seconds: float) -> None:
        for _better in Search(case, contract, fails, seconds).improvements():
            pass

    worker.work(strategy, describe, verdict, keep, revive, simplify)
    if worker.failing:
        messages = [failing.finding["message"] for failing in worker.failing.values()]
        pytest.fail("\n".join([*messages, f"smallest cases in {fuzz_run.directory}"]), pytrace=False)
