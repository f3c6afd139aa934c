"""What `expected` says of special rows, and that its answer does not depend on how the work is cut."""

import math
import resource
from dataclasses import replace

import pytest
import torch

from reference import blocks, bounds, float64
from reference.constants import UNIT, Constants, of_gpu, table, wider
from tests.emulation import Kernel
from tests.reference_inputs import make_inputs
from tests.test_bounds_soundness import HOPPER, power_of_two

INF, NAN = math.inf, math.nan


def expect(inputs, **options):
    return bounds.expected(inputs, constants=HOPPER, **options)


def test_rows_without_keys_allow_nothing_but_zero_and_minus_infinity():
    inputs = make_inputs([(3, 0), (4, 4), (6, 2)], padded_rows=2)
    expected = expect(inputs)
    rows = [0, 1, 2, 7, 8, 9, 10, 13, 14]
    assert expected.empty[rows].all() and not expected.empty[[3, 4, 5, 6, 11, 12]].any()
    low, high = bounds.interval(expected, torch.bfloat16)
    assert (low[rows] == 0).all() and (high[rows] == 0).all()
    lse_low, lse_high = bounds.lse_interval(expected)
    assert (lse_low[rows] == -INF).all() and (lse_high[rows] == -INF).all()


def test_the_golden_result_is_that_of_the_reference():
    inputs = make_inputs([(3, 0), (5, 40), (6, 2)], padded_rows=1)
    expected = expect(inputs, lam=7.5)
    output, lse = float64.attention(inputs)
    assert torch.equal(expected.output, output) and torch.equal(expected.lse, lse)
    assert (expected.output_error_lambda <= expected.output_error).all()
    assert (expected.lse_error_lambda <= expected.lse_error).all()
    assert torch.equal(expected.in_lambda_form().lse_error, expected.lse_error_lambda)
    with pytest.raises(ValueError, match="lam"):
        expect(inputs).in_lambda_form()


def test_the_lse_of_a_single_key_may_err_by_its_dot_product_and_a_few_roundings():
    """kappa 576 u sum |q||k|, in base 2: no wider, or a faulty LSE passes."""
    inputs = make_inputs([(1, 1)])
    page = int(inputs.kv_indices[0])
    query = torch.cat([inputs.q_nope[0], inputs.q_pe[0]], -1).double().abs()
    key = torch.cat([inputs.ckv_cache[page, 0], inputs.kpe_cache[page, 0]]).double().abs()
    dot = HOPPER.kappa * 576 * UNIT * (query @ key) * inputs.sm_scale / math.log(2)
    error = expect(inputs).lse_error[0]
    assert (error >= dot).all() and (error <= 1.1 * dot).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_single_key_must_come_out_bit_for_bit(dtype):
    inputs = make_inputs([(1, 1)], dtype=dtype)
    low, high = bounds.interval(expect(inputs), dtype)
    value = inputs.ckv_cache[inputs.kv_indices[0]].expand(1, 16, 512)
    assert torch.equal(low, value) and torch.equal(high, value)


def test_a_dominant_key_must_come_out_bit_for_bit_at_a_logit_of_a_thousand():
    inputs = make_inputs([(1, 40)], query_spread=2.0**9)
    expected = expect(inputs)
    dominated = torch.exp2(expected.lse - float64_top(inputs)) < 1 + 2.0**-20
    assert dominated.sum() > 12 and expected.lse.abs().max() > 1e3
    low, high = bounds.interval(expected, torch.bfloat16)
    assert torch.equal(low[dominated], high[dominated])


def float64_top(inputs):
    live, _ = blocks.row_spans(inputs)
    (operands,) = float64.blocks_of(inputs, live)
    output, _ = float64.empty_results(inputs, live)
    return float64.evaluate(operands, operands.block.of(output)).scores.amax(-1)[0]


def test_p_that_are_powers_of_two_leave_less_than_an_ulp():
    for length in (17, 65, 300):
        expected = expect(power_of_two(make_inputs([(1, length)])))
        half_ulp = expected.output.abs() * 2.0**-8
        assert (expected.output_error / half_ulp).median() < length / 1000


def near_ties_at_huge_logits():
    """Logits near 1e7 that differ by less than float32 can tell: the weights are anything."""
    inputs = make_inputs([(3, 30)], sm_scale=1.0)
    ckv = inputs.ckv_cache.clone()
    ckv[:, 0, 8:] = ckv[0, 0, 8:]
    return replace(inputs, ckv_cache=ckv, q_nope=(inputs.q_nope * 2.0**18).abs(), q_pe=torch.zeros_like(inputs.q_pe))


def test_where_the_bound_is_void_the_envelope_holds():
    inputs = near_ties_at_huge_logits()
    inputs = replace(inputs, q_nope=torch.cat([torch.zeros_like(inputs.q_nope[..., :8]), inputs.q_nope[..., 8:]], -1))
    expected = expect(inputs)
    assert expected.void.all()
    assert (expected.output_error == INF).all() and (expected.lse_error == INF).all()
    low, high = bounds.interval(expected, torch.bfloat16)
    values = inputs.ckv_cache[inputs.kv_indices, 0].float()
    for row, visible in enumerate((28, 29, 30)):
        least, greatest = values[:visible].amin(0), values[:visible].amax(0)
        slack = 0.01 * values[:visible].abs().amax(0)
        assert ((low[row] <= least) & (low[row] >= least - slack)).all()
        assert ((high[row] >= greatest) & (high[row] <= greatest + slack)).all()
    lse_low, lse_high = bounds.lse_interval(expected)
    assert ((lse_low <= expected.lse) & (expected.lse <= lse_high)).all() and (lse_high - lse_low).max() < INF
    result = Kernel(HOPPER)(inputs)
    output, lse = torch.from_numpy(result.output), torch.from_numpy(result.lse)
    assert ((low.double() <= output) & (output <= high.double())).all()
    assert ((lse_low <= lse) & (lse <= lse_high)).all()


def test_void_rows_among_others_keep_their_places(monkeypatch):
    calm, wild = make_inputs([(2, 5)]), near_ties_at_huge_logits()
    inputs = replace(
        wild,
        q_nope=torch.cat([wild.q_nope, calm.q_nope]),
        q_pe=torch.cat([wild.q_pe, calm.q_pe]),
        qo_indptr=torch.tensor([0, 2, 3, 5]),
        kv_indptr=torch.tensor([0, 9, 30, 30]),
    )
    whole = expect(inputs)
    monkeypatch.setattr(blocks, "ELEMENTS", 2000)
    cut = expect(inputs)
    assert 0 < whole.void.sum() < whole.void.numel() and torch.equal(whole.void, cut.void)
    for left, right in zip(bounds.interval(whole, torch.float32), bounds.interval(cut, torch.float32), strict=True):
        assert torch.allclose(left, right, equal_nan=True)
    rows = torch.tensor([False, True, True, False, True])
    some = whole.of_rows(rows)
    assert some.void.any()
    for ends in (lambda expected: bounds.interval(expected, torch.float32), bounds.lse_interval):
        assert all(torch.equal(of_some, of_all[rows]) for of_some, of_all in zip(ends(some), ends(whole), strict=True))


@pytest.mark.parametrize("elements", [600, 5000, 40_000])
def test_the_answer_does_not_depend_on_how_the_work_is_cut(monkeypatch, elements):
    inputs = make_inputs([(5, 33), (3, 9), (3, 9), (2, 2), (1, 70)])
    whole = expect(inputs, lam=7.5)
    monkeypatch.setattr(blocks, "ELEMENTS", elements)
    monkeypatch.setattr(blocks, "CPU_CHUNK", elements)
    cut = expect(inputs, lam=7.5)
    for name in ("output", "lse", "output_error", "lse_error", "output_error_lambda", "lse_error_lambda"):
        assert torch.allclose(getattr(whole, name), getattr(cut, name), rtol=1e-5, atol=1e-12), name


def test_contaminated_rows_are_told_and_the_rest_of_them_is_bounded():
    inputs = make_inputs([(4, 10), (2, 3)])
    kpe, q_nope = inputs.kpe_cache.clone(), inputs.q_nope.clone()
    kpe[int(inputs.kv_indices[8]), 0, 3] = INF  # rows 2 and 3 see it
    q_nope[4, 7, 100] = NAN
    expected = expect(replace(inputs, kpe_cache=kpe, q_nope=q_nope))
    told = torch.zeros(6, 16, dtype=torch.bool)
    told[2:4], told[4, 7] = True, True
    assert torch.equal(expected.contaminated, told)
    finite = expected.output.isfinite()
    assert finite[2:4].any() and expected.output_error[finite].isfinite().all()
    clean = expect(inputs)
    assert torch.equal(expected.output_error[:2], clean.output_error[:2])


def test_lost_rows_are_nan():
    inputs = make_inputs([(4, 10)])
    pages = inputs.kv_indices.clone()
    pages[8] = -1
    expected = expect(replace(inputs, kv_indices=pages))
    low, high = bounds.interval(expected, torch.bfloat16)
    assert low[2:].isnan().all() and high[2:].isnan().all() and low[:2].isfinite().all()
    expected = expect(replace(inputs, kv_indices=pages[:8]))
    assert expected.output[2:].isnan().all() and not expected.empty.any()


@pytest.mark.parametrize("size", [2.0**-130, 2.0**-60, 2.0**100])
def test_values_of_any_size_are_bounded_in_their_own_size(size):
    inputs = make_inputs([(1, 65)])
    values = (inputs.ckv_cache.float() * size).bfloat16()
    inputs = replace(inputs, ckv_cache=values, q_nope=(inputs.q_nope.float() * 2.0**-120).bfloat16())
    expected = expect(inputs)
    assert (expected.output_error <= 0.05 * size).all()
    value = torch.from_numpy(Kernel(HOPPER)(inputs).value)
    assert ((value - expected.output).abs() <= expected.output_error).all()


def test_poison_in_keys_that_a_row_does_not_see_changes_no_bound():
    inputs = make_inputs([(4, 10)])
    clean = expect(inputs)
    for poison in (NAN, INF, 3e38):
        cache = inputs.ckv_cache.clone()
        cache[int(inputs.kv_indices[9])] = poison  # only row 3 sees it
        dirty = expect(replace(inputs, ckv_cache=cache))
        assert torch.equal(dirty.output[:3], clean.output[:3])
        assert torch.allclose(dirty.output_error[:3], clean.output_error[:3], rtol=1e-9, atol=0)
        assert torch.allclose(dirty.lse_error[:3], clean.lse_error[:3], rtol=1e-9, atol=0)


def test_a_long_context_fits_in_bounded_memory():
    inputs = make_inputs([(1, 131_072)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    expected = expect(inputs)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB; Linux
    assert grown < 2**21, f"expected took {grown / 2**20:.2f} GiB"
    assert expected.output_error.isfinite().all()


def test_the_table_of_constants():
    for entry in table():
        assert entry.kappa >= 0.6 and 4 <= entry.instruction_keys <= 16 and entry.source
        assert min(entry.exp2, entry.log2, entry.division) >= 1
    assert of_gpu("NVIDIA H200", (9, 0)).exp2 < of_gpu("another", (9, 0)).exp2
    unknown = of_gpu("another", (13, 7))
    assert unknown.architecture == "unknown"
    for entry in table():
        both = wider(entry, unknown)
        for name in ("kappa", "exp2", "log2", "division"):
            assert getattr(both, name) == max(getattr(entry, name), getattr(unknown, name)) == getattr(unknown, name)
    assert isinstance(unknown, Constants)


def test_the_bound_of_subnormal_keys_does_not_depend_on_how_a_core_multiplies_them(monkeypatch):
    inputs = make_inputs([(3, 40)])
    patterns = torch.arange(inputs.ckv_cache.numel()).remainder(128).to(torch.int16)
    inputs = replace(inputs, ckv_cache=patterns.view(torch.bfloat16).view(inputs.ckv_cache.shape))
    here = expect(inputs)
    monkeypatch.setattr(float64.Gathered, "any_subnormal", False)
    there = expect(inputs)
    assert torch.allclose(here.output_error, there.output_error, rtol=1e-5, atol=0)
    assert torch.allclose(here.lse_error, there.lse_error, rtol=1e-5, atol=0)
