"""A proof, in ball arithmetic, of how exact the golden reference is.

Every number below is a ball that contains the exact result, computed by `arb` (Johansson, IEEE Trans. Comput. 66(8),
2017) with 300 bits. The golden reference may only be trusted to judge a float32 kernel if its own error is nothing
beside what the kernel is allowed: at most 2^-20 of it, which is what `bounds.SLACK` counts on.
"""

from dataclasses import replace

import pytest
import torch

from kernel.contract import CKV_DIM, Inputs
from reference import bounds, float64
from tests.test_bounds_soundness import HOPPER, VALUES

flint = pytest.importorskip("flint", reason="python-flint is not installed: no ball arithmetic")

NEGLIGIBLE = 2.0**-20


def exact_attention(inputs: Inputs) -> tuple[list, list]:
    """Balls around output [16][512] and lse [16] of the only row of the only request."""
    pages = inputs.kv_indices.long()
    query = torch.cat([inputs.q_nope, inputs.q_pe], -1)[0].double()
    key = torch.cat([inputs.ckv_cache[pages, 0], inputs.kpe_cache[pages, 0]], -1).double()
    scale = flint.arb(float(torch.tensor(inputs.sm_scale, dtype=torch.float32)))
    logits = (flint.arb_mat(query.tolist()) * flint.arb_mat(key.T.tolist()) * scale).tolist()
    shifts = [flint.arb(max(logit.mid() for logit in row)) for row in logits]
    p = [[(logit - shift).exp() for logit in row] for row, shift in zip(logits, shifts, strict=True)]
    totals = [sum(row, flint.arb(0)) for row in p]
    sums = (flint.arb_mat(p) * flint.arb_mat(key[:, :CKV_DIM].tolist())).tolist()
    output = [[element / total for element in row] for row, total in zip(sums, totals, strict=True)]
    lse = [(shift + total.log()) / flint.arb.const_log2() for shift, total in zip(shifts, totals, strict=True)]
    return output, lse


def distance(value: float, ball) -> float:
    """An upper bound of the distance of a number from what the ball contains."""
    return float((flint.arb(value) - ball).abs_upper())


@pytest.mark.parametrize("length", [1, 7, 24])
@pytest.mark.parametrize("values", VALUES)
def test_the_error_of_the_golden_reference_is_proven_negligible(values, length):
    inputs = VALUES[values](length)
    golden_output, golden_lse = float64.attention(inputs)
    expected = bounds.expected(inputs, constants=HOPPER)
    with flint.ctx.workprec(300):
        output, lse = exact_attention(inputs)
        for head in range(16):
            assert distance(float(golden_lse[0, head]), lse[head]) <= NEGLIGIBLE * expected.lse_error[0, head]
            errors = [
                distance(value, ball) for value, ball in zip(golden_output[0, head].tolist(), output[head], strict=True)
            ]
            assert torch.all(torch.tensor(errors) <= NEGLIGIBLE * expected.output_error[0, head])


def test_the_balls_are_tight():
    inputs = VALUES["cancelling"](24)
    with flint.ctx.workprec(300):
        output, lse = exact_attention(inputs)
        assert all(float(ball.rad()) < 2.0**-200 for row in output for ball in row)
        assert all(float(ball.rad()) < 2.0**-200 for ball in lse)


def test_a_wrong_reference_is_not_certified():
    inputs = VALUES["bell"](7)
    wrong = replace(inputs, sm_scale=inputs.sm_scale * (1 + 2.0**-20))
    lse = float64.attention(wrong)[1]
    allowed = bounds.expected(inputs, constants=HOPPER).lse_error
    with flint.ctx.workprec(300):
        _, balls = exact_attention(inputs)
        assert any(distance(float(lse[0, head]), balls[head]) > NEGLIGIBLE * allowed[0, head] for head in range(16))
