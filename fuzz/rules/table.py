"""Every rule on every fault, correct kernel and input set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from fuzz.checks.numeric import LAMBDA
from fuzz.checks.results import Results, bits, call, unwritten
from fuzz.rules import baselines
from fuzz.rules.comparison import Comparison, Rule
from fuzz.rules.emulation import CORRECT, FAULTS, Kernel
from fuzz.rules.inputs import STRATA, SUITES, InputSet
from fuzz.rules.ours import OURS
from fuzz.rules.published import RULES
from fuzz.target import Function
from kernel.contract import Inputs
from reference.bounds import Expected, expected

ALL_RULES = (*RULES, *OURS)


@dataclass(frozen=True, slots=True)
class Judgement:
    """One kernel on one input set: which rules reject it. A fault that changes no bit there is no fault."""

    kernel: str
    faulty: bool
    inputs: InputSet
    rejected_by: frozenset[str]


@dataclass(frozen=True, slots=True)
class Golden:
    """What does not depend on the kernel."""

    expected: Expected
    rigorous: Expected
    low_precision: torch.Tensor
    eager: torch.Tensor


def golden_of(inputs: Inputs, bell: bool) -> Golden:
    rigorous = verdict = expected(inputs, lam=LAMBDA if bell else None)
    if rigorous.output_error_lambda is not None and rigorous.lse_error_lambda is not None:
        verdict = replace(rigorous, output_error=rigorous.output_error_lambda, lse_error=rigorous.lse_error_lambda)
    return Golden(verdict, rigorous, baselines.flash_attention(inputs), baselines.flex_attention(inputs))


def compare(results: Results, golden: Golden) -> Comparison:
    """Results on poisoned memory; published suites hand out memory that holds zeros or whatever was there before."""
    output, lse = (part.masked_fill(unwritten(part), 0) for part in results.named().values())
    return Comparison(
        output=output,
        lse=lse,
        golden_output=golden.expected.output,
        golden_lse=golden.expected.lse,
        low_precision=golden.low_precision,
        eager=golden.eager,
        raw=results,
        expected=golden.expected,
        rigorous=golden.rigorous,
    )


def judge_all(sets: Iterable[InputSet] = (*SUITES, *STRATA), rules: Iterable[Rule] = ALL_RULES) -> Iterator[Judgement]:
    """Every correct kernel and every fault that shows on every set, by every rule."""
    rules = tuple(rules)
    for input_set in sets:
        inputs = input_set.make()
        golden = golden_of(inputs, input_set.bell)
        right = call(_target(CORRECT[0]), inputs, None)
        for kind in (*CORRECT, *FAULTS):
            results = call(_target(kind), inputs, None)
            faulty = kind in FAULTS
            if faulty and _same(results, right):
                continue
            comparison = compare(results, golden)
            rejected = frozenset(rule.name for rule in rules if not rule.accepts(comparison))
            yield Judgement(kind.name, faulty, input_set, rejected)


@dataclass(frozen=True, slots=True)
class Score:
    """What a rule did on some judgements. A kill counts only on inputs where the rule accepts every correct kernel: one
    that rejects everything tells nothing apart."""

    kills: int
    faults: int
    alarms: int
    correct: int


def score(judgements: Iterable[Judgement], rule: Rule) -> Score:
    judgements = tuple(judgements)
    faults = [one for one in judgements if one.faulty]
    correct = [one for one in judgements if not one.faulty]
    alarms = [one.inputs for one in correct if rule.name in one.rejected_by]
    kills = [one for one in faults if rule.name in one.rejected_by and one.inputs not in alarms]
    return Score(len(kills), len(faults), len(alarms), len(correct))


def _target(kind: type[Kernel]) -> Function:
    return Function(kind.name, kind(), destination_passing=True)


def _same(a: Results, b: Results) -> bool:
    pairs = zip(a.named().values(), b.named().values(), strict=True)
    return all(torch.equal(bits(one), bits(other)) for one, other in pairs)
