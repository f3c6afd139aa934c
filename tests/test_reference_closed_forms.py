"""The references against results that need no reference (both of them, float32 with a tolerance that is derived)."""

import math
from dataclasses import replace

import pytest
import torch

from reference import float32, float64
from tests.reference_inputs import make_inputs

REFERENCES = pytest.mark.parametrize(
    ("attention", "unit"), [(float64.attention, 2.0**-53), (float32.attention, 2.0**-24)], ids=["float64", "float32"]
)
INF, NAN = math.inf, math.nan


def zero_queries(inputs):
    return replace(inputs, q_nope=torch.zeros_like(inputs.q_nope), q_pe=torch.zeros_like(inputs.q_pe))


@REFERENCES
def test_a_single_key_is_the_output_and_its_logit_the_lse(attention, unit):
    inputs = make_inputs([(1, 1)])
    output, lse = attention(inputs)
    page = inputs.kv_indices[0]
    assert torch.equal(output, inputs.ckv_cache[page].to(output.dtype).expand(1, 16, 512))
    q = torch.cat([inputs.q_nope, inputs.q_pe], -1).double()[0]
    k = torch.cat([inputs.ckv_cache, inputs.kpe_cache], -1).double()[page, 0]
    scale = torch.tensor(inputs.sm_scale).float().double()
    # a dot product of 576 terms and three more roundings
    assert torch.all((lse[0] - scale * (q @ k) / math.log(2)).abs() <= 580 * unit * scale * (q.abs() @ k.abs()) * 1.5)


@REFERENCES
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (2, 3), (4, 20), (7, 7), (3, 65)])
def test_zero_queries_average_the_visible_keys(attention, unit, q_len, kv_len):
    inputs = zero_queries(make_inputs([(q_len, kv_len)]))
    output, lse = attention(inputs)
    visible = torch.arange(kv_len - q_len + 1, kv_len + 1)
    value = inputs.ckv_cache[inputs.kv_indices, 0].double()
    mean = (value.cumsum(0) / torch.arange(1, kv_len + 1)[:, None])[visible - 1]
    spread = (value.abs().cumsum(0) / torch.arange(1, kv_len + 1)[:, None])[visible - 1]
    assert torch.all(
        (lse - visible.double().log2()[:, None]).abs() <= 8 * unit * (1 + visible.double().log2()[:, None])
    )
    assert torch.all((output - mean[:, None]).abs() <= (kv_len + 8) * unit * spread[:, None])


@REFERENCES
def test_one_page_seen_many_times_is_the_output(attention, unit):
    inputs = make_inputs([(3, 40)])
    inputs = replace(inputs, kv_indices=torch.full_like(inputs.kv_indices, 5))
    output, lse = attention(inputs)
    row = inputs.ckv_cache[5].double().expand(3, 16, 512)
    assert torch.all((output - row).abs() <= 60 * unit * row.abs())
    one_key = replace(inputs, qo_indptr=torch.arange(4), kv_indptr=torch.arange(4))
    expected = float64.attention(one_key)[1] + torch.tensor([38.0, 39, 40]).double().log2()[:, None]
    assert torch.allclose(lse.double(), expected, rtol=0, atol=2e4 * unit)


@REFERENCES
def test_equal_values_come_out_whatever_the_weights(attention, unit):
    inputs = make_inputs([(5, 33), (2, 9)])
    constant = torch.linspace(-3, 3, 512).to(inputs.ckv_cache.dtype).expand_as(inputs.ckv_cache)
    output, _ = attention(replace(inputs, ckv_cache=constant))
    expected = constant[0].double().expand_as(output)
    assert torch.all((output - expected).abs() <= 50 * unit * expected.abs())


@REFERENCES
def test_a_dominant_key_is_the_output(attention, unit):
    inputs = make_inputs([(4, 50)], sm_scale=1.0)
    kpe_cache, q_pe = torch.zeros_like(inputs.kpe_cache), torch.zeros_like(inputs.q_pe)
    page = int(inputs.kv_indices[20])
    kpe_cache[page, 0, 0], q_pe[..., 0] = 200.0, 2.0
    inputs = replace(zero_queries(inputs), kpe_cache=kpe_cache, q_pe=q_pe)
    output, lse = attention(inputs)
    assert torch.equal(output, inputs.ckv_cache[page].to(output.dtype).expand(4, 16, 512))
    assert torch.all((lse - 400 / math.log(2)).abs() <= 600 * 4 * unit)


@REFERENCES
def test_page_names_do_not_matter(attention, unit):
    inputs = make_inputs([(5, 33), (2, 9)])
    order = torch.randperm(inputs.num_pages, generator=torch.Generator().manual_seed(1))
    new_name = torch.empty_like(order)
    new_name[order] = torch.arange(inputs.num_pages)
    renamed = replace(
        inputs,
        ckv_cache=inputs.ckv_cache[order],
        kpe_cache=inputs.kpe_cache[order],
        kv_indices=new_name[inputs.kv_indices.long()],
    )
    for left, right in zip(attention(inputs), attention(renamed), strict=True):
        assert torch.equal(left, right)


@REFERENCES
def test_rows_equal_those_of_requests_cut_at_their_visible_prefix(attention, unit):
    inputs = make_inputs([(5, 33), (3, 9), (2, 1)])
    output, lse = attention(inputs)
    qo_indptr, kv_indptr = inputs.qo_indptr.tolist(), inputs.kv_indptr.tolist()
    for request in range(3):
        for row in range(qo_indptr[request], qo_indptr[request + 1]):
            visible = max(0, kv_indptr[request + 1] - qo_indptr[request + 1] + row + 1 - kv_indptr[request])
            start = kv_indptr[request]
            alone = replace(
                inputs,
                q_nope=inputs.q_nope[row : row + 1],
                q_pe=inputs.q_pe[row : row + 1],
                qo_indptr=torch.tensor([0, 1]),
                kv_indptr=torch.tensor([0, visible]),
                kv_indices=inputs.kv_indices[start : start + visible],
            )
            row_output, row_lse = attention(alone)
            assert torch.allclose(output[row], row_output[0], rtol=0, atol=2e3 * unit)
            assert torch.allclose(lse[row], row_lse[0], rtol=0, atol=2e4 * unit)


@REFERENCES
def test_dead_pages_and_later_storage_do_not_matter(attention, unit):
    inputs = make_inputs([(5, 33), (3, 9)])
    dead = torch.ones(inputs.num_pages, dtype=torch.bool)
    dead[inputs.kv_indices.long()] = False
    poisoned = replace(
        inputs,
        ckv_cache=inputs.ckv_cache.masked_fill(dead[:, None, None], NAN),
        kpe_cache=inputs.kpe_cache.masked_fill(dead[:, None, None], INF),
        kv_indices=torch.cat([inputs.kv_indices, torch.tensor([-1, 2**31 - 1, -(2**31)], dtype=torch.int32)]),
    )
    for left, right in zip(attention(inputs), attention(poisoned), strict=True):
        assert torch.equal(left, right)
