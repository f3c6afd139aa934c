"""The error bound against an emulated GPU: a correct kernel stays below it and may come near; a faulty one does not."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from reference import bounds
from reference.constants import of_gpu
from reference.profile import PROFILES, Profile
from tests.emulation import FAULTS, Kernel
from tests.reference_inputs import make_inputs

HOPPER, AMPERE, VOLTA = of_gpu("", (9, 0)), of_gpu("", (8, 0)), of_gpu("", (7, 0))
KERNELS = {
    "Hopper": Kernel(HOPPER),
    "Hopper, small tiles": Kernel(HOPPER, tile=16),
    "Hopper, splits": Kernel(HOPPER, splits=4),
    "Hopper, backwards": Kernel(HOPPER, backwards=True),
    "Hopper, base e": Kernel(HOPPER, natural=True),
    "float32 sums in sequence": Kernel(HOPPER, fraction_bits=None),
    "Ampere": Kernel(AMPERE, fraction_bits=24),
    "Volta": Kernel(VOLTA, fraction_bits=23),
}
DOCUMENTED = {
    "fast-math": Kernel(HOPPER, raw_maximum=True, tile=16),
    "rounded-denominator": Kernel(HOPPER, rounded_denominator=True),
    "flashinfer": Kernel(HOPPER, raw_maximum=True, rounded_denominator=True, rounded_partials=True, splits=4, tile=16),
}
LAMBDA = 7.5


@dataclass(frozen=True)
class Ratios:
    """Worst observed error over its bound, and how many results lie outside the final intervals."""

    output: float
    lse: float
    outside: int


def judge(inputs, kernel, profile=bounds.DEFAULT_PROFILE, lam=None) -> Ratios:
    expected = bounds.expected(inputs, profile, kernel.constants, lam=lam)
    if lam is not None:
        expected = expected.in_lambda_form()
    result = kernel(inputs)
    value, output, lse = (torch.from_numpy(array) for array in (result.value, result.output, result.lse))
    low, high = bounds.interval(expected, inputs.q_nope.dtype)
    lse_low, lse_high = bounds.lse_interval(expected)
    outside = ~((low.double() <= output) & (output <= high.double()))
    lse_outside = ~((lse_low <= lse) & (lse <= lse_high))
    return Ratios(
        output=float(((value - expected.output).abs() / expected.output_error).max()),
        lse=float(((lse - expected.lse).abs() / expected.lse_error).max()),
        outside=int(outside.sum()) + int(lse_outside.sum()),
    )


def peaky(inputs):
    ckv = inputs.ckv_cache.clone()
    ckv[inputs.kv_indices[len(inputs.kv_indices) // 2]] = inputs.q_nope[0, 0] * 2
    return replace(inputs, ckv_cache=ckv)


def one_page(inputs):
    return replace(inputs, kv_indices=torch.full_like(inputs.kv_indices, 1))


def two_level(inputs):
    return replace(inputs, kv_indices=torch.where(torch.arange(len(inputs.kv_indices)) % 3 == 1, 2, 1).int())


def cancelling(inputs):
    q_nope, ckv = inputs.q_nope.clone(), inputs.ckv_cache.clone()
    q_nope[..., 256:] = q_nope[..., :256]
    ckv[..., 256:] = -ckv[..., :256] * (1 + 0.01 * inputs.ckv_cache[..., 256:].float()).to(ckv.dtype)
    return replace(inputs, q_nope=q_nope, ckv_cache=ckv)


def offset_values(inputs):
    return replace(inputs, ckv_cache=inputs.ckv_cache * 0.05 + 3)


def rising(inputs):
    """Later keys are larger in every row: the maximum rises in every tile."""
    kpe, q_pe = inputs.kpe_cache.clone(), inputs.q_pe.clone()
    q_pe[..., 0] = 8
    kpe[inputs.kv_indices.long(), 0, 0] = torch.arange(len(inputs.kv_indices)).to(kpe.dtype)
    return replace(inputs, kpe_cache=kpe, q_pe=q_pe)


def power_of_two(inputs):
    """sm_scale = ln 2 and integer logits from one lane: every p is a power of two."""
    kpe, q_pe = torch.zeros_like(inputs.kpe_cache), torch.zeros_like(inputs.q_pe)
    q_pe[..., 0] = 1
    logits = torch.randint(-12, 1, (inputs.num_pages,), generator=torch.Generator().manual_seed(3))
    kpe[:, 0, 0] = logits.to(kpe.dtype)
    q_nope = torch.zeros_like(inputs.q_nope)
    return replace(inputs, q_nope=q_nope, q_pe=q_pe, kpe_cache=kpe, sm_scale=math.log(2))


VALUES = {
    "bell": lambda length: make_inputs([(1, length)]),
    "bell, float16": lambda length: make_inputs([(1, length)], dtype=torch.float16),
    "large logits": lambda length: make_inputs([(1, length)], query_spread=4.0),
    "logits near 1e3": lambda length: make_inputs([(1, length)], query_spread=256.0),
    "logits near 1e5": lambda length: make_inputs([(1, length)], query_spread=16384.0),
    "tiny scale": lambda length: make_inputs([(1, length)], sm_scale=1e-30),
    "negative scale": lambda length: make_inputs([(1, length)], sm_scale=-0.5),
    "peaky": lambda length: peaky(make_inputs([(1, length)])),
    "one page": lambda length: one_page(make_inputs([(1, length)])),
    "two levels": lambda length: two_level(make_inputs([(1, length)])),
    "cancelling": lambda length: cancelling(make_inputs([(1, length)])),
    "offset values": lambda length: offset_values(make_inputs([(1, length)])),
    "offset values, float16": lambda length: offset_values(make_inputs([(1, length)], dtype=torch.float16)),
    "rising": lambda length: rising(make_inputs([(1, length)])),
    "power of two": lambda length: power_of_two(make_inputs([(1, length)])),
}
SHORT, LONG = (1, 2, 17, 65), (300,)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_correct_kernel_is_inside_the_bound(kernel, values):
    for length in SHORT + LONG if kernel == "Hopper" else (65,):
        ratios = judge(VALUES[values](length), KERNELS[kernel])
        assert ratios.outside == 0, f"{length} keys: {ratios}"
        assert ratios.output <= 1 and ratios.lse <= 1, f"{length} keys: {ratios}"


@pytest.mark.parametrize(
    "values", ["bell", "logits near 1e3", "logits near 1e5", "offset values", "rising", "power of two"]
)
@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_kernel_that_documents_other_numerics_is_inside_its_profile(name, values):
    ratios = judge(VALUES[values](300), DOCUMENTED[name], PROFILES[name])
    assert ratios.outside == 0 and ratios.output <= 1 and ratios.lse <= 1


def test_splits_that_leave_16_bits_are_right_only_where_that_is_documented():
    kernel, documented = Kernel(HOPPER, splits=2, rounded_partials=True), Profile("mine", rounded_partials=True)
    assert judge(VALUES["power of two"](52), kernel, documented).outside == 0
    assert judge(VALUES["power of two"](52), kernel).outside > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_lambda_form_holds_for_bell_shaped_values_and_is_sharper_for_the_lse(dtype):
    inputs = make_inputs([(4, 300)], dtype=dtype)
    plain, narrow = judge(inputs, Kernel(HOPPER)), judge(inputs, Kernel(HOPPER), lam=LAMBDA)
    assert narrow.outside == 0 and narrow.output <= 1 and narrow.lse <= 1
    assert narrow.lse > 5 * plain.lse


def midpoints(length, dtype):
    """Every rounding of P at its largest, and alike in sign.

    One key at the maximum, all others where p is half way between two numbers of the dtype, values of one sign.
    """
    unit = torch.finfo(dtype).eps / 2
    logit = torch.tensor(math.log2(0.5 + unit / 2) + unit * 2**-6, dtype=torch.float64)
    coarse = logit.to(dtype).double()
    inputs = make_inputs([(1, length)], dtype=dtype, sm_scale=math.log(2))
    kpe, q_pe = torch.zeros_like(inputs.kpe_cache), torch.zeros_like(inputs.q_pe)
    q_pe[..., :2] = 1
    kpe[:, 0, 0], kpe[:, 0, 1] = coarse.to(dtype), (logit - coarse).to(dtype)
    kpe[int(inputs.kv_indices[0])] = 0
    values = (inputs.ckv_cache * 0.01 + 1).to(dtype)
    return replace(inputs, q_nope=torch.zeros_like(inputs.q_nope), q_pe=q_pe, kpe_cache=kpe, ckv_cache=values)


@pytest.mark.parametrize(("length", "dtype"), [(300, torch.bfloat16), (1500, torch.bfloat16), (100, torch.float16)])
def test_correlated_roundings_of_p_come_near_the_bound(length, dtype):
    ratios = judge(midpoints(length, dtype), Kernel(HOPPER))
    assert 0.9 <= ratios.output <= 1 and ratios.outside == 0


def test_correlated_roundings_of_p_break_the_lambda_form():
    """Which is why it is a verdict for bell-shaped values only."""
    assert judge(midpoints(1500, torch.bfloat16), Kernel(HOPPER), lam=LAMBDA).output > 1


def test_a_kernel_needs_the_profile_that_it_documents():
    inputs = midpoints(300, torch.bfloat16)
    half = replace(inputs, ckv_cache=inputs.ckv_cache)
    strict = judge(half, Kernel(HOPPER), Profile("unrounded P", p_dtype=torch.float32))
    assert strict.output > 100
    for profile in PROFILES.values():
        assert judge(half, Kernel(HOPPER), profile).output <= 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_kernel_is_outside_the_bound(fault):
    lengths = (65, 300)
    suite = ("bell", "large logits", "peaky", "offset values", "rising", "power of two")
    kills = {
        (values, length): judge(VALUES[values](length), Kernel(HOPPER, fault=fault)).outside
        for values in suite
        for length in lengths
    }
    assert any(kills.values()), f"{fault} survived {list(kills)}"
