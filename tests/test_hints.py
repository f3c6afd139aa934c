"""A wrong result that is one of the usual mistakes is called by its name; any other is not."""

import math
import time
from dataclasses import replace

import pytest
import torch

import fuzz.checks
from fuzz.case import Case
from fuzz.checks import judge
from fuzz.target import Function
from kernel.contract import CONTRACTS, Inputs
from reference import float64

CASE = Case(lengths=((1, 2, 30), (1, 12, 40)), pages="permuted", seed=11)


@pytest.fixture(autouse=True)
def no_invariance_by_chance(monkeypatch):
    monkeypatch.setattr(fuzz.checks, "_drawn", lambda case, contract: set())


def solve(operands) -> tuple[torch.Tensor, torch.Tensor]:
    """What a correct kernel gives: the golden reference, rounded."""
    inputs = Inputs(**operands)
    output, lse = float64.attention(inputs)
    return output.to(inputs.q_nope.dtype), lse.float()


def findings(run, case: Case = CASE, contract: str = "hardened", **target) -> dict[str, str]:
    verdict = judge(case, Function("tests:kernel", run, False, **target), contract=CONTRACTS[contract])
    return {finding.check: finding.detail for finding in verdict.findings}


def scaled(factor):
    return lambda sm_scale, **operands: solve({**operands, "sm_scale": factor(sm_scale)})


def with_keys(visible):
    """A kernel in which query i of q_len sees `visible(i, q_len, kv_len)` keys."""

    def run(**operands):
        inputs = Inputs(**operands)
        q, kv = inputs.qo_indptr.tolist(), inputs.kv_indptr.tolist()
        counts, indices = [], []
        for b in range(inputs.batch):
            q_len, kv_len = q[b + 1] - q[b], kv[b + 1] - kv[b]
            for i in range(q_len):
                counts.append(min(max(visible(i, q_len, kv_len), 0), kv_len))
                indices.append(inputs.kv_indices[kv[b] : kv[b] + counts[-1]])
        ends = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        starts = torch.arange(len(counts) + 1, dtype=torch.int32)
        return solve(replace(inputs, qo_indptr=starts, kv_indptr=ends, kv_indices=torch.cat(indices)).operands())

    return run


def changed(change):
    """A kernel whose results go through `change(output, lse)`."""
    return lambda **operands: change(*solve(operands))


def on_output(change):
    return changed(lambda output, lse: (change(output), lse))


def on_lse(change):
    return changed(lambda output, lse: (output, change(lse)))


def swapped(tensor):
    return tensor[[0, 1, *range(2, 6), 7, 6, *range(8, 14)]]


def without_end(tensor):
    """The result in memory of its own, of which the last four rows are never written."""
    result = torch.empty_like(tensor)
    result[:10] = tensor[:10]
    return result


MISTAKES = {
    "ln": (on_lse(lambda lse: lse * math.log(2)), {"lse": "the natural logarithm (ln instead of log2)"}),
    "transposed lse": (on_lse(lambda lse: lse.T.reshape(lse.shape)), {"lse": "an lse transposed, stored as [16, 14]"}),
    "no scale": (scaled(lambda scale: 1.0), dict.fromkeys(("output", "lse"), "sm_scale left out")),
    "scale of another dimension": (
        scaled(lambda scale: 576**-0.5),
        dict.fromkeys(("output", "lse"), "the scale 1/sqrt(576) instead of sm_scale"),
    ),
    "scale twice": (scaled(lambda scale: scale**2), dict.fromkeys(("output", "lse"), "sm_scale applied twice")),
    "exp2 of natural logits": (
        scaled(lambda scale: scale * math.log(2)),
        dict.fromkeys(("output", "lse"), "exp2 of logits that were not multiplied by log2(e)"),
    ),
    "one key too few": (
        with_keys(lambda i, q_len, kv_len: kv_len - q_len + i),
        dict.fromkeys(("output", "lse"), "a causal edge one key too early"),
    ),
    "one key too many": (
        with_keys(lambda i, q_len, kv_len: kv_len - q_len + i + 2),
        dict.fromkeys(("output", "lse"), "a causal edge one key too late"),
    ),
    "top left": (
        with_keys(lambda i, q_len, kv_len: i + 1),
        dict.fromkeys(("output", "lse"), "a causal mask aligned to the top left instead of the bottom right"),
    ),
    "no mask": (
        with_keys(lambda i, q_len, kv_len: kv_len),
        dict.fromkeys(("output", "lse"), "no causal mask"),
    ),
    "one key too few in one row": (
        with_keys(lambda i, q_len, kv_len: kv_len - q_len + i + (i != 5)),
        dict.fromkeys(("output", "lse"), "a causal edge one key too early, in some rows"),
    ),
    "rows swapped": (on_output(swapped), {"output": "the result of row 7 in its place (rows swapped)"}),
    "heads rolled": (
        on_output(lambda output: output.roll(3, 1)),
        {"output": "heads in the wrong places (head 3 holds the result of head 0)"},
    ),
    "an end not written": (
        on_output(without_end),
        {"written": "an unwritten tail: all from row 10 on of output was never written"},
    ),
    "an end of zeros": (
        on_output(lambda output: torch.cat([output[:10], torch.zeros_like(output[10:])])),
        {"output": "an unwritten tail: all from row 10 on of output holds zeros, as if never written"},
    ),
    "columns of zeros": (
        on_output(lambda output: torch.cat([output[..., :384], torch.zeros_like(output[..., 384:])], -1)),
        {"output": "an unwritten tail: all from column 384 on of output holds zeros, as if never written"},
    ),
}


def test_a_correct_result_has_no_findings():
    assert findings(solve_by_name) == {}


def solve_by_name(**operands):
    return solve(operands)


@pytest.mark.parametrize(("run", "looks"), MISTAKES.values(), ids=MISTAKES)
def test_a_usual_mistake_is_named(run, looks):
    found = findings(run)
    assert set(found) == set(looks)
    for check, words in looks.items():
        # the places of swapped rows depend on which of the two is farther off
        either = {words, words.replace("row 7", "row 6")}
        assert any(f"; looks like {one};" in found[check] for one in either), found[check]


@pytest.mark.parametrize(
    "run",
    [
        on_output(lambda output: output * 1.1),
        on_output(torch.randn_like),
        on_lse(lambda lse: lse + 1),
        on_lse(lambda lse: torch.full_like(lse, math.nan)),
        on_lse(lambda lse: torch.full_like(lse, -math.inf)),
        on_output(lambda output: torch.full_like(output, math.inf)),
        scaled(lambda scale: 1.1 * scale),
    ],
)
def test_what_is_no_usual_mistake_is_not_named(run):
    found = findings(run)
    assert found and not any("looks like" in detail for detail in found.values())


def test_a_row_of_one_key_that_comes_out_as_if_it_had_none_says_nothing_of_the_causal_edge():
    def run(**operands):
        output, lse = solve(operands)
        return torch.zeros_like(output), torch.full_like(lse, -math.inf)

    found = findings(run, Case(lengths=((1, 1, 1),)))
    assert set(found) == {"output", "lse"} and not any("causal" in detail for detail in found.values())


@pytest.mark.parametrize(
    "case",
    [
        Case(lengths=((1, 3, 70), (1, 5, 2), (1, 2, 9)), padded_rows=3, seed=6),
        Case(lengths=((3, 2, 0), (1, 2, 1)), seed=6),
        Case(lengths=((1, 2, 5),), values="nonfinite-seen", seed=1),
        Case(lengths=((1, 4, 5),), pages="garbage", seed=1),
        Case(lengths=((1, 4, 5),), indptr="kv-falling", seed=1),
    ],
)
def test_strange_cases_have_a_verdict_like_any_other(case):
    wrong = findings(
        lambda **operands: tuple(result.nan_to_num(0.0, 0.0, 0.0) + 100 for result in solve(operands)), case
    )
    assert wrong


def test_the_names_of_mistakes_cost_little_beside_the_verdict():
    case = Case(lengths=((1, 40, 4000),), seed=2)
    start = time.perf_counter()
    assert not findings(solve_by_name, case)
    healthy = time.perf_counter() - start
    start = time.perf_counter()
    assert "looks like" not in findings(on_output(lambda output: output + 1), case)["output"]
    assert time.perf_counter() - start < 2 * healthy + 1


def test_a_contract_without_the_lse_asks_for_none_and_judges_none():
    case = replace(CASE, poison="decoys")
    contract = CONTRACTS["hardened"] - {"lse"}

    def verdict(run, contract):
        return judge(case, Function("tests:kernel", run, False), contract=contract, also=frozenset({"repeatable"}))

    for run in (lambda **operands: solve(operands)[0], on_lse(lambda lse: lse * math.log(2)), on_lse(lambda lse: None)):
        quiet = verdict(run, contract)
        assert not quiet.findings and "lse" not in quiet.ran and quiet.ran["output"]
        assert {finding.check for finding in verdict(run, CONTRACTS["hardened"]).findings} == {"lse"}
    missing = verdict(lambda **operands: solve(operands)[0], CONTRACTS["hardened"])
    assert missing.findings[0].detail == "the kernel gave none; --without lse leaves that promise out"
