"""Items that programs of the Hopper kernel find themselves are those of the list, whatever row pointers hold."""

from dataclasses import replace

import pytest
import torch

from kernel import host
from kernel.contract import Inputs
from kernel.plan import plan_emulated
from tests.reference_inputs import make_inputs

pytestmark = pytest.mark.skipif(not host.INTERPRETED, reason="runs the Hopper kernel in Triton's interpreter")
_SENTINEL = 7.0


def _results(inputs: Inputs, found: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the Hopper kernel in the interpreter; what it does not write stays as it was."""

    def plan_for(device: torch.device, listable: bool):
        return replace(plan_emulated(device, listable), found=found)

    output = torch.full_like(inputs.q_nope, _SENTINEL)
    lse = torch.full(inputs.q_nope.shape[:2], _SENTINEL)
    return host.call(inputs, output, lse, plan_for)


def _assert_same(inputs: Inputs) -> None:
    for found, listed in zip(_results(inputs, found=31), _results(inputs, found=1), strict=True):
        torch.testing.assert_close(found, listed, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "lengths",
    [
        [(5, 40), (0, 30), (3, 17), (9, 17)],
        [(4, 20), (4, 20), (1, 20), (2, 9)],
        [(1, 300), (2, 600), (1, 20), (3, 3)],
        [(1, 1200), (1, 129)],
        [(20, 6), (6, 20)],
        [(1, 17)] * 31,
        [(30, 45), (25, 190), (12, 30), (41, 41)],
        [(9, 400), (14, 66), (3, 700), (8, 64), (20, 80)],
        [(2, 130), (2, 130), (18, 96), (1, 900)],
    ],
)
def test_found_items_give_the_bits_that_listed_ones_give(lengths):
    _assert_same(make_inputs(lengths, padded_rows=2))


@pytest.mark.parametrize("qo", [[0, 5, 3, 9], [-1, 3, 6, 9], [0, 3, 6, 12]])
def test_no_row_is_written_where_query_pointers_are_out_of_order(qo):
    inputs = make_inputs([(3, 40), (3, 40), (3, 10)])
    output, lse = _results(replace(inputs, qo_indptr=torch.tensor(qo, dtype=torch.int32)), found=31)
    assert (output == _SENTINEL).all()
    assert (lse == _SENTINEL).all()


@pytest.mark.parametrize("kv", [[0, 400, 200, 500], [-3, 20, 60, 500], [0, 20, 450, 900], [0, 2**31 - 1, 40, 500]])
def test_key_pointers_that_fall_or_lead_outside_are_taken_alike(kv):
    inputs = make_inputs([(1, 200), (3, 200), (2, 100)])
    _assert_same(replace(inputs, kv_indptr=torch.tensor(kv, dtype=torch.int32)))


@pytest.mark.parametrize("kv", [[0, 2**33 + 20, 40, 500], [2**33, 2**33 + 300, 450, 500]])
def test_key_pointers_of_more_than_32_bits_are_not_cut_to_32(kv):
    inputs = make_inputs([(1, 200), (3, 200), (2, 100)])
    _assert_same(replace(inputs, kv_indptr=torch.tensor(kv)))


def test_query_pointers_of_more_than_32_bits_are_out_of_order():
    qo = torch.tensor([2**32, 2**32 + 3, 2**32 + 6, 2**32 + 9])
    output, _ = _results(replace(make_inputs([(3, 40), (3, 40), (3, 10)]), qo_indptr=qo), found=31)
    assert (output == _SENTINEL).all()
