"""What is checked of a kernel on a case; `judge` runs all of it.

Always, as far as the case defines results: alive, written, in-bounds, inputs-untouched, output, lse, empty-rows. The
checks that call the kernel again (`invariance.INVARIANCES`) are costly: each case draws about one of them, besides
batch-invariant.
"""

from collections.abc import Set
from hashlib import blake2b

import torch

from fuzz.build import build
from fuzz.case import Case, is_sparse, promises_needed
from fuzz.checks.elsewhere import Elsewhere, home_of
from fuzz.checks.finding import Finding, Verdict
from fuzz.checks.hints import are_valid, hinted
from fuzz.checks.invariance import INVARIANCES
from fuzz.checks.memory import Snapshot, check_bounds, check_written
from fuzz.checks.numeric import check_form, check_numbers
from fuzz.checks.results import KernelRaised, call
from fuzz.checks.rows import owns_rows, place
from fuzz.checks.storage import tensors
from fuzz.checks.trial import Trial
from fuzz.demands import ONCE
from fuzz.strata.indptr import INDPTRS
from fuzz.target import OutputAlone, Target
from kernel.contract import Inputs

__all__ = ["CHECKS", "Finding", "Verdict", "is_made", "judge", "judge_inputs", "needs_device"]

CHECKS = (*ONCE, *INVARIANCES)


def judge(
    case: Case,
    target: Target,
    *,
    device: torch.device | str = "cpu",
    contract: Set[str],
    also: Set[str] = frozenset(),
) -> Verdict:
    """Run `target` on `case` and check what it promises.

    contract   the promises (`kernel.contract.PROMISES`) that the kernel makes
    also       invariance checks to run besides those that the case draws: a shrinker keeps the failing one

    The kernel runs before the reference, on poisoned memory. Raises ValueError if the case needs a promise that the
    contract lacks.
    """
    missing = promises_needed(case) - contract
    if missing:
        raise ValueError(f"the case needs the promise {', '.join(sorted(missing))}, which the contract does not make")
    if "lse" not in contract:
        target = OutputAlone(target)
    device = torch.device(device)
    home = home_of(case, device)
    if home != device:
        target = Elsewhere(target, device, in_order="stream-ordered" in contract)
    return _judged(Verdict(case), target, build(case, home), contract, _drawn(case, contract) | also, device)


def judge_inputs(inputs: Inputs, target: Target, *, contract: Set[str]) -> Verdict:
    """Run `target` on operands that are no case's, and check all that it promises for them: every check but those that
    build operands anew. Bounds are the rigorous ones.

    The operands must be such as the contract admits, each in guarded memory (`fuzz.guards`).
    """
    if "lse" not in contract:
        target = OutputAlone(target)
    again = set()
    if are_valid(inputs):
        again = {name for name, one in INVARIANCES.items() if one.promise in contract and not one.rebuilds}
    return _judged(Verdict(None), target, inputs, contract, again, inputs.device)


def _judged(
    verdict: Verdict, target: Target, inputs: Inputs, contract: Set[str], again: Set[str], device: torch.device
) -> Verdict:
    """The verdict, with what all checks found; `again` names those to run that call the kernel again."""
    try:
        _run_checks(verdict, target, inputs, contract, again, device)
    except KernelRaised as error:
        verdict.add("alive", error.finding())
    verdict.findings = [place(inputs, finding, target) for finding in verdict.findings]
    return verdict


def is_made(check: str, contract: Set[str]) -> bool:
    """Whether a check can be among those of a case under a contract."""
    promise = "lse" if check == "lse" else INVARIANCES[check].promise if check in INVARIANCES else "base"
    return promise in contract


def needs_device(case: Case, contract: Set[str], also: Set[str]) -> bool:
    """Whether checks are among those of a case that are about the device: its streams, its graphs, which is current."""
    return any(INVARIANCES[name].promise == "stream-ordered" for name in _drawn(case, contract) | also)


def _run_checks(
    verdict: Verdict, target: Target, inputs: Inputs, contract: Set[str], again: Set[str], device: torch.device
) -> None:
    before = Snapshot(inputs)
    results = call(target, inputs, verdict.case)
    verdict.add("alive")
    untouched = before.holds(inputs)
    verdict.add("inputs-untouched", None if untouched else before.changed(inputs))
    verdict.add("in-bounds", check_bounds({} if untouched else tensors(inputs), results))
    if not owns_rows(inputs):
        return
    if "lse" in contract and results.lse is None:
        verdict.add("lse", Finding("lse", "the kernel gave none; --without lse leaves that promise out"))
    malformed = check_form(inputs, results)
    for finding in malformed:
        verdict.add(finding.check, finding)
    if malformed:
        return
    unwritten = check_written(results)
    verdict.add("written", unwritten)
    if unwritten is None:
        check_numbers(verdict, inputs, results, profile=target.profile)
    verdict.findings = [hinted(finding, inputs, results, target.profile) for finding in verdict.findings]
    trial = Trial(verdict.case, target, inputs, results, frozenset(contract), device)
    for name in filter(again.__contains__, INVARIANCES):  # in one order, whatever the process: findings are named by it
        seen = INVARIANCES[name].check(trial)
        if seen is not None:
            verdict.include(seen)


def _drawn(case: Case, contract: Set[str]) -> set[str]:
    """The invariance checks of a case: of those that its contract and its size allow, each in one case of as many as it
    says."""
    if not INDPTRS[case.indptr].valid:
        return set()
    text, sparse = str(case), is_sparse(case)
    return {
        name
        for name, invariance in INVARIANCES.items()
        if invariance.promise in contract
        and not (invariance.copies and sparse)
        and _digest(f"{name} {text}") % invariance.one_in == 0
    }


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
