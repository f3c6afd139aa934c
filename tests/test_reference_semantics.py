"""What the references say where definitions disagree: empty rows, garbage indices, non-finite keys, odd layouts."""

import math
import resource
import time
from dataclasses import replace

import pytest
import torch

from reference import float32, float64
from tests.reference_inputs import indptr, make_inputs

BOTH = pytest.mark.parametrize("attention", [float64.attention, float32.attention], ids=["float64", "float32"])
INF, NAN = math.inf, math.nan


def is_empty(output, lse):
    return bool((output == 0).all()) and not output.signbit().any() and bool((lse == -INF).all())


def is_nan(output, lse):
    return bool(output.isnan().all()) and bool(lse.isnan().all())


def is_finite(output, lse):
    return bool(output.isfinite().all()) and bool(lse.isfinite().all())


@BOTH
def test_rows_that_see_no_key_are_zero_and_minus_infinity(attention):
    inputs = make_inputs([(3, 0), (4, 4), (0, 5), (6, 2), (0, 0)], padded_rows=2)
    output, lse = attention(inputs)
    assert output.shape == (15, 16, 512) and lse.shape == (15, 16)
    empty = [*range(3), *range(7, 11), 13, 14]  # no keys; masked; padded
    assert is_empty(output[empty], lse[empty])
    live = [*range(3, 7), 11, 12]
    assert is_finite(output[live], lse[live]) and (output[live] != 0).any()


@BOTH
@pytest.mark.parametrize("lengths", [[], [(0, 0)], [(0, 7)]])
def test_no_rows(attention, lengths):
    output, lse = attention(make_inputs(lengths))
    assert output.shape == (0, 16, 512) and lse.shape == (0, 16)


@BOTH
@pytest.mark.parametrize("bad", [-1, -(2**31), 2**31 - 1, "num_pages"])
def test_a_page_outside_the_cache_makes_the_rows_that_see_it_nan(attention, bad):
    inputs = make_inputs([(4, 10), (2, 3)])
    pages = inputs.kv_indices.clone()
    pages[8] = inputs.num_pages if bad == "num_pages" else bad  # the rows see 7, 8, 9 and 10 keys
    output, lse = attention(replace(inputs, kv_indices=pages))
    clean_output, clean_lse = attention(inputs)
    assert is_nan(output[2:4], lse[2:4])
    for row in (0, 1, 4, 5):
        assert torch.allclose(output[row], clean_output[row], rtol=1e-5, atol=1e-6)
        assert torch.allclose(lse[row], clean_lse[row], rtol=1e-5)


@BOTH
def test_a_key_position_outside_kv_indices_makes_the_rows_that_see_it_nan(attention):
    inputs = make_inputs([(4, 10), (2, 3)])
    cut = replace(inputs, kv_indices=inputs.kv_indices[:8])  # request 0 keeps 8 of its 10 keys
    output, lse = attention(cut)
    assert is_finite(output[:2], lse[:2]) and is_nan(output[2:], lse[2:])
    negative = replace(inputs, kv_indptr=torch.tensor([-5, 10, 13]))
    output, lse = attention(negative)
    assert is_nan(output[:4], lse[:4]) and is_finite(output[4:], lse[4:])
    nowhere = replace(inputs, ckv_cache=inputs.ckv_cache[:0], kpe_cache=inputs.kpe_cache[:0])
    assert is_nan(*attention(nowhere))


@BOTH
def test_a_falling_kv_indptr_is_a_request_without_keys(attention):
    inputs = make_inputs([(4, 10), (2, 3)])
    output, lse = attention(replace(inputs, kv_indptr=torch.tensor([0, 13, 10])))
    assert is_empty(output[4:], lse[4:])


@BOTH
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_garbage_row_pointers_stay_in_bounds_and_end(attention, dtype):
    inputs = make_inputs([(4, 10), (2, 3), (1, 1)])
    limits = torch.iinfo(dtype)
    entries = torch.tensor([limits.min, limits.max, -1, 0, 3, 10**6, limits.max // 2], dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        chosen = entries[torch.randint(len(entries), (2, 4), generator=generator)]
        output, lse = attention(replace(inputs, qo_indptr=chosen[0], kv_indptr=chosen[1]))
        assert output.shape == (7, 16, 512) and lse.shape == (7, 16)


@BOTH
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("part", ["ckv_cache", "kpe_cache"])
def test_non_finite_keys_reach_only_the_rows_that_see_them(attention, value, part):
    inputs = make_inputs([(4, 10), (2, 3)])
    cache = getattr(inputs, part).clone()
    cache[int(inputs.kv_indices[8]), 0, 3] = value  # the rows see 7, 8, 9 and 10 keys
    output, lse = attention(replace(inputs, **{part: cache}))
    clean_output, clean_lse = attention(inputs)
    for row in (0, 1, 4, 5):
        assert torch.allclose(output[row], clean_output[row], rtol=1e-5, atol=1e-6)
        assert torch.allclose(lse[row], clean_lse[row], rtol=1e-5)
    for row in (2, 3):
        sign = torch.sign(inputs.q_nope[row, :, 3] if part == "ckv_cache" else inputs.q_pe[row, :, 3])
        lost = torch.ones(16, dtype=torch.bool) if math.isnan(value) else sign * value > 0
        assert is_nan(output[row, lost], lse[row, lost])
        assert lse[row, ~lost].isfinite().all()  # a logit of -inf has weight 0, and
        if part == "ckv_cache":  # the value in column 3 is then 0 * inf
            assert output[row, ~lost, 3].isnan().all()
        rest = torch.cat([output[row, ~lost, :3], output[row, ~lost, 4:]], -1)
        assert rest.isfinite().all()


@BOTH
def test_a_row_whose_every_logit_is_minus_infinity_is_nan_and_not_empty(attention):
    inputs = make_inputs([(1, 1)])
    kpe_cache = inputs.kpe_cache.clone()
    kpe_cache[int(inputs.kv_indices[0]), 0, 0] = INF
    q_pe = -inputs.q_pe.abs()
    assert is_nan(*attention(replace(inputs, kpe_cache=kpe_cache, q_pe=q_pe)))


def test_infinite_values_add_as_ieee_says():
    value = torch.zeros(2, 512, dtype=torch.float64)
    value[:, 0] = torch.tensor([INF, INF])
    value[:, 1] = torch.tensor([INF, -INF])
    value[:, 2] = torch.tensor([-INF, 1.0])
    value[:, 3] = torch.tensor([NAN, 1.0])
    weight = torch.full((1, 1, 2), 0.5, dtype=torch.float64)
    added = float64.non_finite_values(weight, weight > 0, value[None])[0, 0]
    assert added[0] == INF and added[1].isnan() and added[2] == -INF and added[3].isnan()
    assert (added[4:] == 0).all()
    unseen = torch.tensor([[[False, True]]])
    assert (float64.non_finite_values(weight, unseen, value[None])[0, 0, 2:] == 0).all()


@BOTH
def test_strides_offsets_and_index_dtype_do_not_matter(attention):
    inputs = make_inputs([(5, 33), (3, 9)])

    def strided(tensor):
        wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 7), NAN, dtype=tensor.dtype)
        wide[..., 3 : 3 + tensor.shape[-1]] = tensor
        return wide[..., 3 : 3 + tensor.shape[-1]]

    other = replace(
        inputs,
        q_nope=strided(inputs.q_nope),
        q_pe=strided(inputs.q_pe),
        ckv_cache=strided(inputs.ckv_cache),
        kpe_cache=strided(inputs.kpe_cache),
        qo_indptr=inputs.qo_indptr.long(),
        kv_indices=inputs.kv_indices.long().repeat_interleave(2)[::2],
    )
    for left, right in zip(attention(inputs), attention(other), strict=True):
        assert torch.equal(left, right)


@BOTH
@pytest.mark.parametrize("sm_scale", [0.0, -0.07, 1e-30, 1.0])
def test_any_scale(attention, sm_scale):
    inputs = make_inputs([(3, 20)], sm_scale=sm_scale)
    output, lse = attention(inputs)
    assert is_finite(output, lse)
    if sm_scale in (0.0, 1e-30):
        assert torch.allclose(lse[:, 0].double(), torch.tensor([18.0, 19, 20]).double().log2(), rtol=1e-6)


def test_the_scale_is_rounded_to_float32_first():
    inputs = make_inputs([(3, 20)], sm_scale=0.1)
    rounded = replace(inputs, sm_scale=float(torch.tensor(0.1, dtype=torch.float32)))
    assert torch.equal(float64.attention(inputs)[1], float64.attention(rounded)[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("query_spread", [0.01, 1.0, 20.0])
def test_float32_agrees_with_float64(dtype, query_spread):
    """|error of a logit| <= 580 u |scale| sum |q||k| (Higham, Accuracy and Stability, section 3.1).

    A weight is off by at most twice that and its own rounding, relatively, and the output by as much of sum w |v|.
    """
    inputs = make_inputs([(5, 33), (3, 0), (4, 2), (7, 300)], dtype=dtype, query_spread=query_spread, padded_rows=1)
    output, lse = float64.attention(inputs)
    output32, lse32 = float32.attention(inputs)
    size = replace(
        inputs,
        q_nope=inputs.q_nope.abs(),
        q_pe=inputs.q_pe.abs(),
        ckv_cache=inputs.ckv_cache.abs(),
        kpe_cache=inputs.kpe_cache.abs(),
    )
    largest = max(
        float64.scaled_scores(operands).max() for operands in float64.blocks_of(size, float64.row_spans(size)[0])
    )
    logit_error = 580 * 2.0**-24 * float(largest)
    live = lse > -INF
    assert torch.equal(lse32 == -INF, ~live)
    assert torch.all((lse32 - lse)[live].abs() <= logit_error + 1e-6 * (1 + lse[live].abs()))
    largest_value = float(inputs.ckv_cache.abs().max())
    allowed = (math.expm1(2 * math.log(2) * logit_error) + 320 * 2.0**-24) * largest_value
    assert (output32 - output).abs().max() <= allowed


def test_a_long_context_fits_in_bounded_memory_and_seconds():
    inputs = make_inputs([(2, 131_072)])
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    output, lse = float64.attention(inputs)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB; Linux
    assert is_finite(output, lse)
    assert grown < 2**20, f"float64.attention took {grown / 2**20:.2f} GiB"
    assert time.perf_counter() - start < 30


def test_many_requests_take_seconds():
    """65,537 requests of one or two keys; every eighth has a query, which keeps the results small."""
    count = 65_537
    inputs = make_inputs([(3, 5)])
    q_lens = [int(request % 8 == 0) for request in range(count)]
    rows = torch.arange(sum(q_lens)) % 3
    many = replace(
        inputs,
        q_nope=inputs.q_nope[rows],
        q_pe=inputs.q_pe[rows],
        qo_indptr=indptr(q_lens),
        kv_indptr=indptr([1, 2] * (count // 2) + [2]),
        kv_indices=torch.arange(2 * count, dtype=torch.int32) % inputs.num_pages,
    )
    start = time.perf_counter()
    output, lse = float64.attention(many)
    assert time.perf_counter() - start < 60
    last = replace(
        many,
        q_nope=many.q_nope[-1:],
        q_pe=many.q_pe[-1:],
        qo_indptr=torch.tensor([0, 1]),
        kv_indptr=many.kv_indptr[-2:],
    )
    last_output, last_lse = float64.attention(last)
    assert torch.allclose(output[-1], last_output[0]) and torch.allclose(lse[-1], last_lse[0])
