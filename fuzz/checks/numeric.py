"""Output and LSE against the golden reference, within the computed bound; empty rows and rows with NaN or Inf exactly.

The rules are made exact in docs/error-bound.md: a finite element passes when it lies in RN(out* - F) .. RN(out* + F),
which every result of a correct kernel does, and where the bound is void, when it lies between the smallest and the
largest value that an average of the visible keys can have.
"""

from functools import lru_cache

import torch

from fuzz.case import Case, is_bell_shaped
from fuzz.checks.finding import Finding, Verdict
from fuzz.checks.results import Results, bits
from fuzz.checks.windows import windows
from kernel.contract import NUM_HEADS, Inputs
from reference import bounds
from reference.bounds import Expected, interval, lse_interval
from reference.profile import DEFAULT_PROFILE, Profile

LSE_DTYPE = torch.float32


def check_form(inputs: Inputs, results: Results) -> list[Finding]:
    """Shape, dtype and device of the results; without these nothing else can be checked."""
    wanted = {
        "output": (tuple(inputs.q_nope.shape), inputs.q_nope.dtype),
        "lse": ((inputs.total_q, NUM_HEADS), LSE_DTYPE),
    }
    findings = []
    for name, tensor in results.named().items():
        shape, dtype = wanted[name]
        have = (tuple(tensor.shape), tensor.dtype, tensor.device)
        if have != (shape, dtype, inputs.device):
            spelled = "shape {}, {} on {}".format
            findings.append(Finding(name, f"has {spelled(*have)}, must have {spelled(shape, dtype, inputs.device)}"))
    return findings


# An output element of a smaller ratio lies in the interval, whatever float32 does to its ends: that moves them by
# 2 u |out*| at most, and the roundings of the denominator alone make F 60 u |out*|.
_SURE = 0.9
# Elements whose ratios are taken at a time.
_CPU_CHUNK, _GPU_CHUNK = 1 << 15, 1 << 24
# Of a night of 10^9 elements one in a thousand has a false alarm of the lambda form: docs/error-bound.md.
LAMBDA = 7.5


def expected_of(case: Case | None, inputs: Inputs, profile: Profile = DEFAULT_PROFILE) -> Expected:
    """The golden result for operands of `case`, with the bound that is a verdict for it and a kernel of `profile`.

    That is the lambda form where values are bell-shaped, the rigorous one everywhere else, and for operands of no case.
    """
    if case is None or not is_bell_shaped(case):
        return bounds.expected(inputs, profile)
    return bounds.expected(inputs, profile, lam=LAMBDA).in_lambda_form()


@torch.inference_mode()  # small operations take a tenth less
def check_numbers(
    verdict: Verdict,
    inputs: Inputs,
    results: Results,
    rows: torch.Tensor | None = None,
    profile: Profile = DEFAULT_PROFILE,
) -> None:
    """The checks output, lse and empty-rows of `rows` (bool [total_q], default all), each with its worst element."""
    rows = torch.ones(inputs.total_q, dtype=torch.bool, device=inputs.device) if rows is None else rows
    parts = []
    for window, part in windows(inputs):
        seen = Verdict(verdict.case)
        expected = expected_of(verdict.case, part, profile)
        _check_window(seen, results.rows(window), expected, rows[window])
        parts += [finding.moved(window.start) for finding in seen.findings]
        seen.findings = []
        verdict.include(seen)
    for check in dict.fromkeys(finding.check for finding in parts):
        verdict.findings.append(max((f for f in parts if f.check == check), key=lambda finding: finding.ratio or 0.0))


def _check_window(verdict: Verdict, results: Results, expected: Expected, rows: torch.Tensor) -> None:
    _check_empty(verdict, results, expected.empty & rows[:, None])
    # A golden NaN is a row that sees a NaN or Inf, or that names a page which does not exist.
    tainted = (expected.contaminated | expected.lse.isnan()) & rows[:, None]
    clean = ~(tainted | expected.empty) & rows[:, None]
    _check_output(verdict, results.output, expected, tainted, clean)
    if results.lse is not None:
        _check_lse(verdict, results.lse, expected, tainted, clean)


def _check_empty(verdict: Verdict, results: Results, empty: torch.Tensor) -> None:
    rows = empty.any(-1).nonzero()[:, 0]
    if not len(rows):
        return
    verdict.add("empty-rows")
    results, empty = results.rows(rows), empty[rows]
    demands = [(results.output, (bits(results.output) != 0) & empty[..., None], "output +0", 0.0)]
    if results.lse is not None:
        demands.append((results.lse, ~torch.isneginf(results.lse) & empty, "lse -inf", float("-inf")))
    for tensor, wrong, what, expected in demands:
        if wrong.any():
            index = tuple(wrong.nonzero()[0].tolist())
            detail = f"a row that sees no key must have {what} ({int(wrong.sum())} elements have not)"
            finding = Finding("empty-rows", detail, index, tensor[index].item(), expected)
            verdict.add("empty-rows", finding.at_rows(rows.tolist()))


def _check_output(
    verdict: Verdict, output: torch.Tensor, expected: Expected, tainted: torch.Tensor, clean: torch.Tensor
) -> None:
    elements, doubtful = output.numel(), tainted
    if elements:
        worst = _worst_ratio(output, expected)
        doubtful = _any_finite(output, tainted) | clean & (expected.void | ~(worst < _SURE))
        verdict.add("output", ratio=torch.where(clean & ~doubtful, worst, 0.0).max().item())
        if not doubtful.any():
            return
    rows = doubtful.any(-1)
    output, expected = output[rows], expected.of_rows(rows)
    tainted, clean = tainted[rows, :, None], clean[rows, :, None]
    low, high = interval(expected, output.dtype)
    inside = (output >= low) & (output <= high)
    wrong = clean & ~inside | tainted & output.isfinite() & ~(inside & expected.output.isfinite())
    ratio = beyond_rounding(output, expected.output).div_(expected.output_error)
    seen = Verdict(verdict.case)
    _report(seen, "output", output, expected.output, (low, high), wrong, clean & inside, ratio, elements)
    seen.findings = [finding.at_rows(rows.nonzero()[:, 0].tolist()) for finding in seen.findings]
    verdict.include(seen)


def _any_finite(output: torch.Tensor, tainted: torch.Tensor) -> torch.Tensor:
    """[rows, 16] bool: a row and head that are `tainted` and not NaN or Inf throughout, as most are."""
    rows = tainted.any(-1)
    found = tainted.clone()
    found[rows] &= output[rows].isfinite().any(-1)
    return found


def _worst_ratio(output: torch.Tensor, expected: Expected) -> torch.Tensor:
    """[rows, 16] float64: the largest ratio of a row and head. A few rows at a time, whose temporaries a core keeps in
    its cache."""
    rows = max(1, (_CPU_CHUNK if output.device.type == "cpu" else _GPU_CHUNK) // output[0].numel())
    parts = zip(output.split(rows), expected.output.split(rows), expected.output_error.split(rows), strict=True)
    return torch.cat([beyond_rounding(got, exact).div_(error).amax(-1) for got, exact, error in parts])


def _check_lse(
    verdict: Verdict, lse: torch.Tensor, expected: Expected, tainted: torch.Tensor, clean: torch.Tensor
) -> None:
    low, high = lse_interval(expected)
    value = lse.double()
    inside = (value >= low) & (value <= high)
    not_finite = lse.isnan() | torch.isposinf(lse)
    wrong = clean & ~inside | tainted & ~not_finite & ~(inside & expected.lse.isfinite())
    ratio = (value - expected.lse).abs() / expected.lse_error
    _report(verdict, "lse", lse, expected.lse, (low, high), wrong, clean & inside, ratio, lse.numel())


def _report(
    verdict: Verdict,
    check: str,
    got: torch.Tensor,
    expected: torch.Tensor,
    allowed: tuple[torch.Tensor, torch.Tensor],
    wrong: torch.Tensor,
    measured: torch.Tensor,
    ratio: torch.Tensor,
    elements: int,
) -> None:
    """Record the worst ratio of the `measured` elements, and the `wrong` one that is farthest from what is expected,
    of so many `elements` that were looked at.

    `ratio` [like got] float64 is overwritten.
    """
    # 0 / 0: an exact result where only the exact one is allowed
    ratio = ratio.masked_fill_(~measured, 0.0).nan_to_num_(0.0, torch.inf)
    worst = ratio.max().item() if ratio.numel() else 0.0
    verdict.add(check, ratio=worst)
    if not wrong.any():
        return
    distance = torch.where(wrong, (got.double() - expected).abs().nan_to_num(torch.inf, torch.inf), -1.0)
    index = tuple(int(i) for i in torch.unravel_index(distance.argmax(), got.shape))
    count = f"{int(wrong.sum())} of {elements} elements"
    center, value, (low, high) = expected[index].item(), got[index].item(), (side[index].item() for side in allowed)
    if center != center:
        detail = f"{count} are finite although their row sees a NaN or Inf, or a page that does not exist"
        verdict.add(check, Finding(check, detail, index, value, center))
        return
    reach = high - center if value > center else center - low
    # both ends may be on one side of what is expected, by rounding
    ratio_there = abs(value - center) / reach if reach > 0 else float("inf")
    verdict.add(check, Finding(check, f"{count} are outside the bound", index, value, center, (low, high), ratio_there))


def beyond_rounding(output: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """How far `exact` is from the nearest real number that rounds to `output`: the error before the final rounding."""
    place = bits(output).int().add_(1 << 15).flatten()
    low, high = (end.index_select(0, place).view(output.shape) for end in _ends(output.dtype, output.device))
    return exact.clamp(low, high).sub_(exact).abs_()


@lru_cache
def _ends(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """What `_rounds_to` says of all 16-bit floats of a dtype, float64 [2^16] each, in the order of their bits as signed
    integers: looked up in a third of the time that it takes to compute them."""
    patterns = torch.arange(-(1 << 15), 1 << 15, device=device).to(torch.int16)
    low, high = _rounds_to(patterns.view(dtype))
    return low.double(), high.double()


def _rounds_to(output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The ends of the interval of real numbers that round to each element: halfway to its neighbours among the 16-bit
    floats, which float32 holds exactly."""
    pattern, half = bits(output), output.float().div_(2)  # sign and magnitude: the pattern counts away from zero
    outward, inward = ((pattern + step).view(output.dtype).float().div_(2).add_(half) for step in (1, -1))
    inward = torch.where(half == 0, -outward, inward)
    return torch.minimum(outward, inward), torch.maximum(outward, inward)
