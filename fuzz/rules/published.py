"""The acceptance rules of published suites, quirks included, each as a function of a `Comparison`.

Constants and order of comparisons follow the sources named in `RULES`; x is the candidate, y the reference.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fuzz.rules.comparison import Comparison, Rule


def flashinfer_bench(c: Comparison) -> bool:
    """Wrong where |x - y| > 1e-2 and |x - y| / (|y| + 1e-8) > 1e-2; no element may be.

    Any Inf or NaN in x is wrong, a correct -inf included. NaN compares false: whatever x is where y is not finite, as
    long as it is finite, passes.
    """

    def matches(x: Tensor, y: Tensor) -> bool:
        error = (x.float() - y.float()).abs()
        relative = error / (y.float().abs() + 1e-8)
        return bool(x.isfinite().all()) and not bool(((error > 1e-2) & (relative > 1e-2)).any())

    return matches(c.output, c.reference_output) and matches(c.lse, c.reference_lse)


def sol_execbench(c: Comparison) -> bool:
    """Wrong where |x - y| > 1e-2 + 1e-2 |y|; 99 % of the elements must be right, the rest may be anything finite.

    Anything not finite in x or y fails, equal infinities too; x all zero fails where y is not.
    """

    def matches(x: Tensor, y: Tensor) -> bool:
        x, y = x.float(), y.float()
        if not (x.isfinite().all() and y.isfinite().all()) or (y.any() and not x.any()):
            return False
        wrong = (x - y).abs() > 1e-2 + 1e-2 * y.abs()
        return 1 - wrong.double().mean().item() >= 0.99

    return matches(c.output, c.reference_output) and matches(c.lse, c.reference_lse)


def kernelbench(c: Comparison) -> bool:
    """torch.allclose(y, x) at 1e-2 for 16-bit problems: the relative part is of the candidate x."""

    def matches(x: Tensor, y: Tensor) -> bool:
        return torch.allclose(y, x, atol=1e-2, rtol=1e-2)

    return matches(c.output, c.reference_output) and matches(c.lse, c.reference_lse)


def flash_attention(c: Comparison) -> bool:
    """max |x - y| <= 2 max |pt - y| + 2 max |y + 0.3 - 0.3 - y|, pt the same formula in 16 bits; no LSE.

    y is the float32 result cast to 16 bits, and so is the arithmetic with 0.3.
    """
    y = c.reference_output
    noise = (y + 0.3 - 0.3 - y).abs().max().item()
    return _largest(c.output - y) <= 2 * _largest(c.low_precision - y) + 2 * noise


def flex_attention(c: Comparison) -> bool:
    """mean |y - x| <= 1.1 mean |y - eager|, y in float64, eager the same formula in 16 bits; NaN fails; no LSE."""
    y = c.golden_output
    error, allowed = (y - c.output).abs().mean(), (y - c.eager).abs().mean() * 1.1
    return not (error.isnan() or allowed.isnan() or error > allowed)


def triton_kernels(c: Comparison) -> bool:
    """With both scaled by max |y|: e = |x - y| / max(rms y, |y|), max e <= 2e-2 and rms e <= 4e-3.

    Infinities must stand in the same places, of whatever sign, and count as zero.
    """

    def matches(x: Tensor, y: Tensor) -> bool:
        x, y = x.float(), y.float()
        if not torch.equal(x.isinf(), y.isinf()):
            return False
        x, y = x.masked_fill(x.isinf(), 0), y.masked_fill(y.isinf(), 0)
        scale = 1 / (y.abs().max() + 1e-30)
        x, y = x * scale, y * scale
        error = (y - x).abs() / torch.maximum(y.square().mean().sqrt() + 1e-30, y.abs())
        return error.max().item() <= 2e-2 and error.square().mean().sqrt().item() <= 4e-3

    return matches(c.output, c.reference_output) and matches(c.lse, c.reference_lse)


def flash_mla(c: Comparison) -> bool:
    """Right where |x - y| < a or |x - y| / (|y| + 1e-6) < r, and 1 - 2 <x, y> / (x^2 + y^2) at most t in size.

    a, r, t are 8e-4, 2.01/128, 5e-6 for the output and 1e-6, 8.01/65536, 1e-7 for the LSE (dense decoding).
    Infinities and NaN must stand in the same places, and count as zero.
    """

    def matches(x: Tensor, y: Tensor, a: float, r: float, t: float) -> bool:
        x, y = x.float(), y.float()
        for same in (torch.isposinf, torch.isneginf, torch.isnan):
            if not torch.equal(same(x), same(y)):
                return False
        x, y = (torch.where(side.isfinite(), side, 0.0) for side in (x, y))
        error = (x - y).abs()
        if not ((error < a) | (error / (y.abs() + 1e-6) < r)).all():
            return False
        x, y = x.double(), y.double()
        squares = y.square().sum()
        return bool(squares < 1e-12) or abs(1 - 2 * (x * y).sum() / (squares + x.square().sum())).item() <= t

    return matches(c.output, c.reference_output, 8e-4, 2.01 / 128, 5e-6) and matches(
        c.lse, c.reference_lse, 1e-6, 8.01 / 65536, 1e-7
    )


def flashinfer(c: Comparison) -> bool:
    """|x - y| <= 1e-3 + 1e-3 |y|, made for float16; equal infinities pass; no LSE where a request is empty."""

    def matches(x: Tensor, y: Tensor) -> bool:
        return torch.allclose(x.float(), y.float(), atol=1e-3, rtol=1e-3)

    lse_is_checked = not c.reference_lse.isneginf().any()
    return matches(c.output, c.reference_output) and (not lse_is_checked or matches(c.lse, c.reference_lse))


def flash_linear_attention(c: Comparison) -> bool:
    """rms(x - y) < 0.005 (rms(y) + 1e-8), or max |x - y| <= 1e-6; NaN fails; no LSE."""
    x, y = c.output.float(), c.reference_output.float()
    if _largest(x - y) <= 1e-6:
        return True
    ratio = ((x - y).square().mean().sqrt() / (y.square().mean().sqrt() + 1e-8)).item()
    return not x.isnan().any() and ratio < 0.005


def _largest(difference: Tensor) -> float:
    """The largest size, NaN if there is one: NaN <= anything is false."""
    return difference.abs().max().item()


RULES = (
    Rule(
        "FlashInfer-Bench",
        flashinfer_bench,
        ("normal, ragged",),
        "flashinfer_bench/bench/utils.py compute_error_stats, bench/evaluators/default.py; bench/config.py",
    ),
    Rule(
        "SOL-ExecBench",
        sol_execbench,
        ("normal, ragged",),
        "src/sol_execbench/core/bench/correctness.py; core/data/workload.py ToleranceSpec defaults",
    ),
    Rule("KernelBench", kernelbench, ("uniform",), "src/kernelbench/eval.py run_and_check_correctness"),
    Rule(
        "FlashAttention, 2x",
        flash_attention,
        ("normal, ragged", "normal, an empty request"),
        "hopper/test_flash_attn.py test_flash_attn_varlen_output; tests/test_util.py attention_ref",
    ),
    Rule(
        "flex_attention, 1.1x",
        flex_attention,
        ("normal, equal",),
        "test/inductor/test_flex_attention.py _check_equal; torch/_higher_order_ops/flex_attention.py math_attention",
    ),
    Rule("triton_kernels", triton_kernels, ("normal, ragged",), "python/triton_kernels/triton_kernels/testing.py"),
    Rule(
        "FlashMLA",
        flash_mla,
        ("clamped tenths",),
        "tests/kernelkit/compare.py check_is_allclose; tests/test_flash_mla_dense_decoding.py",
    ),
    Rule(
        "FlashInfer, 1e-3",
        flashinfer,
        ("float16, equal",),
        "tests/attention/test_deepseek_mla.py",
    ),
    Rule("FLA, 0.005", flash_linear_attention, ("normal, equal",), "fla/utils assert_close; tests/ops/test_attn.py"),
)
