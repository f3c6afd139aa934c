"""`python -m fuzz check`: the verdict on the workloads of a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from fuzz.checks import judge_inputs
from fuzz.claims import Claim
from fuzz.loading import load
from fuzz.operands import Workload, operands_of, promises_needed, read_workloads
from fuzz.options import UsageError
from fuzz.target import Target
from fuzz.terms import promises
from fuzz.words import ratio_text
from kernel.contract import Inputs


def check(paths: Iterable[Path], kernel: str, claim: Claim, seed: int, device: str) -> int:
    """Judge each workload of each file and print a verdict; returns the exit status: 0 all passed, 1 one failed, 2 one
    could not be judged, or there was none.

    Raises:
        UsageError: the kernel or what it claims.
    """
    contract, target = promises(claim.contract, claim.without), load(kernel, claim.profile)
    counts = {"PASSED": 0, "FAILED": 0, "ERROR": 0}
    for path in paths:
        try:
            for workload in read_workloads(path):
                counts[_answer(workload, target, contract, seed, device)] += 1
        except UsageError as error:
            counts[_refused(error)] += 1
    print(", ".join(f"{count} {answer}" for answer, count in counts.items()))
    if counts["ERROR"] or not counts["PASSED"] + counts["FAILED"]:
        return 2
    return 1 if counts["FAILED"] else 0


def _answer(workload: Workload | UsageError, target: Target, contract: frozenset[str], seed: int, device: str) -> str:
    try:
        if isinstance(workload, UsageError):
            raise workload
        inputs = operands_of(workload, seed, device)
        for promise, reason in promises_needed(inputs).items():
            if promise not in contract:
                raise UsageError(f"{workload}: it needs the promise {promise}, which the contract lacks: {reason}")
    except UsageError as error:
        return _refused(error)
    verdict = judge_inputs(inputs, target, contract=contract)
    answer = "FAILED" if verdict.failed else "PASSED"
    ratios = ", ".join(f"{name} {ratio_text(verdict.ran[name])}" for name in ("output", "lse") if name in verdict.ran)
    print(f"{answer} {workload.uuid} ({workload}; {_sizes(inputs)}): {ratios or 'nothing to compare'}", flush=True)
    for finding in verdict.findings:
        print(f"    {finding}", flush=True)
    return answer


def _sizes(inputs: Inputs) -> str:
    return f"{inputs.batch:,} requests, {inputs.total_q:,} queries, {inputs.num_kv_indices:,} keys"


def _refused(error: UsageError) -> str:
    print(f"mla-fuzz: ERROR {error}", file=sys.stderr, flush=True)
    return "ERROR"
