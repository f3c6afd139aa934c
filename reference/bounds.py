"""How far a correct kernel may be from the golden reference: a bound per row, head and column, from the inputs.

docs/error-bound.md derives it. In short, with w the softmax weights, T_j the error of weight j relative to it, and
tau = sum w T:

    output:  [ sum w T |v - output|  +  (r + g) sum w (1 + T) |v|  +  (1 + tau) D |output| ] / [(1 - tau) (1 - D)]
    lse:     - log2((1 - tau) (1 - D))  +  the roundings of the logarithm and of its sum with the maximum

r is the rounding of P to 16 bits, g that of the accumulation, D that of the denominator.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from kernel.contract import CKV_DIM, NUM_HEADS, Inputs

from . import float64
from .blocks import KEY_DIM, blocks, row_spans
from .constants import UNIT, Constants, constants_for
from .exactness import exact_dots
from .precision import full_float32
from .profile import DEFAULT_PROFILE, Profile
from .rounding import LN2, LOGIT_ROUNDINGS, SMALLEST_NORMAL, Rounding, rounding_of

# Covers what the derivation drops: products of small errors, float64's own, and those of sum |q||k| in float32 (576 u).
SLACK = 1.001
# From this error of the sum of weights on, the bound is void: the weights say nothing more.
VOID = 0.5
# Where the exponent of a weight may be off by more than this, the centred form is not used.
CENTRED = 1.0
# exp(t) - 1 is taken of at most this; a larger exponent is added to the logit first, so that nothing overflows.
LARGE = 30.0
# Keys that show where the logits of a row do not differ by integers.
PROBE = slice(0, 16)
# What exp2 flushes to zero, of P or of a factor that rescales it; relative to the largest p, which is 1.
FLUSHED = SMALLEST_NORMAL
# Rows rounded at a time in `interval`: 64 MiB in float64.
ROWS = 1024


@dataclass(frozen=True, slots=True)
class Expected:
    """The golden result and how far a correct kernel may be from it. All on the inputs' device; float64 unless noted.

    Where a bound is void its error is +inf and the envelope takes its place. NaN rows and NaN elements of the golden
    result carry no meaningful error.
    """

    output: Tensor  # [total_q, 16, 512]
    lse: Tensor  # [total_q, 16]
    output_error: Tensor  # [total_q, 16, 512] of the float32 result, before it is rounded to the output's dtype
    lse_error: Tensor  # [total_q, 16] of the float32 result as it is stored
    output_error_lambda: Tensor | None  # the same in the lambda form, never wider; None unless asked for
    lse_error_lambda: Tensor | None
    void: Tensor  # [total_q, 16] bool
    output_envelope: tuple[Tensor, Tensor]  # least and greatest output, [V, 512], of the V void (row, head), in order
    lse_envelope: tuple[Tensor, Tensor]  # least and greatest lse, [V]
    empty: Tensor  # [total_q, 16] bool: the row sees no key
    contaminated: Tensor  # [total_q, 16] bool: it sees a NaN or Inf among its keys, or holds one in its own query

    def in_lambda_form(self) -> "Expected":
        """The same with the lambda form's errors as the errors; ValueError where they were not asked for."""
        if self.output_error_lambda is None or self.lse_error_lambda is None:
            raise ValueError("the lambda form was not asked for: call expected(..., lam=...)")
        return replace(self, output_error=self.output_error_lambda, lse_error=self.lse_error_lambda)


def expected(
    inputs: Inputs,
    profile: Profile = DEFAULT_PROFILE,
    constants: Constants | None = None,
    *,
    lam: float | None = None,
) -> Expected:
    """Evaluate the golden reference and the bound together.

    `constants` defaults to those of the machine that computes operands on the inputs' device. `lam` asks for the
    lambda form too: it holds with probability about 1 - 2 exp(-lam^2 / 2) per element, and only for independent,
    bell-shaped values and distinct pages.
    """
    constants = constants or constants_for(inputs.device)
    result = _without_keys(inputs, lam)
    live, lost = row_spans(inputs)
    for span in lost:
        lost_rows = slice(span.row, span.row + span.count)
        result.output[lost_rows] = result.lse[lost_rows] = math.nan
        result.empty[lost_rows] = False
    hulls = []
    forms = [None] if lam is None else [None, lam]
    for block in blocks(live, inputs.device):
        rows, operands = block.rows, float64.Operands(inputs, block)
        golden = float64.evaluate(operands)
        of_block = (block.visible, block.shape[-1], inputs.sm_scale, inputs.q_nope.dtype, profile, constants)
        roundings = [rounding_of(*of_block, form) for form in forms]
        bound, *narrow = _bounds(operands, golden, roundings, constants)
        result.output[rows], result.lse[rows] = golden.output, golden.lse
        result.output_error[rows], result.lse_error[rows] = bound.output_error, bound.lse_error
        result.void[rows], result.empty[rows] = bound.void, False
        result.contaminated[rows] = _contaminated(operands)
        if bound.any_void:
            hulls.append(_hull(operands, golden, bound))
        if result.output_error_lambda is not None and result.lse_error_lambda is not None:
            result.output_error_lambda[rows] = torch.minimum(narrow[0].output_error, bound.output_error)
            result.lse_error_lambda[rows] = torch.minimum(narrow[0].lse_error, bound.lse_error)
    if not hulls:
        return result
    order = torch.cat([hull.index for hull in hulls]).argsort()
    low, high, lse_low, lse_high = (torch.cat(parts)[order] for parts in zip(*(h.bounds for h in hulls), strict=True))
    return replace(result, output_envelope=(low, high), lse_envelope=(lse_low, lse_high))


def interval(expected: Expected, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The least and the greatest output [total_q, 16, 512] of `dtype` that a correct kernel may give.

    RN(out - F) and RN(out + F), rounded to nearest by way of float32 as the kernel's own result is. Rounding is
    monotone, so no sharper test follows from F. The envelope where the bound is void, NaN where the golden result is.
    """
    low = torch.empty(expected.output.shape, dtype=dtype, device=expected.output.device)
    high = torch.empty_like(low)
    for start in range(0, len(low), ROWS):
        part = slice(start, start + ROWS)
        low[part] = (expected.output[part] - expected.output_error[part]).float()
        high[part] = (expected.output[part] + expected.output_error[part]).float()
    low[expected.void], high[expected.void] = (bound.float().to(dtype) for bound in expected.output_envelope)
    return low, high


def lse_interval(expected: Expected) -> tuple[Tensor, Tensor]:
    """The least and the greatest lse [total_q, 16], float64; -inf and -inf where the row is empty."""
    low, high = expected.lse - expected.lse_error, expected.lse + expected.lse_error
    low[expected.void], high[expected.void] = expected.lse_envelope
    return low, high


def _without_keys(inputs: Inputs, lam: float | None) -> Expected:
    """What is expected of rows that see no key; their results are exact."""
    output, lse = float64.empty_results(inputs)
    flags = torch.zeros(lse.shape, dtype=torch.bool, device=inputs.device)
    return Expected(
        output=output,
        lse=lse,
        output_error=torch.zeros_like(output),
        lse_error=torch.zeros_like(lse),
        output_error_lambda=None if lam is None else torch.zeros_like(output),
        lse_error_lambda=None if lam is None else torch.zeros_like(lse),
        void=flags,
        output_envelope=(output.new_empty(0, CKV_DIM),) * 2,
        lse_envelope=(lse.new_empty(0),) * 2,
        empty=~flags,
        contaminated=flags.clone(),
    )


@dataclass(frozen=True, slots=True)
class _Bound:
    """The bound of one block, [G, R, 16], and what its envelope follows from."""

    output_error: Tensor  # [G, R, 16, 512]
    lse_error: Tensor
    void: Tensor
    any_void: bool
    lse_rounding: Tensor  # the roundings of the lse itself
    softmax: "_SoftmaxErrors"
    rounding: Rounding


def _bounds(
    operands: float64.Operands, golden: float64.Attention, roundings: Sequence[Rounding], constants: Constants
) -> list[_Bound]:
    """The bounds of one block, one for each of `roundings`; what they have in common is computed once."""
    logits = _Logits(golden)
    errors = [_softmax_errors(operands, golden, logits, rounding, constants) for rounding in roundings]
    weights = [_value_weights(operands, golden, logits, *pair) for pair in zip(errors, roundings, strict=True)]
    sums = _value_sums(operands, [weight for weight, _ in weights], torch.abs)
    squared = [potential.square_() for _, potential in weights[1:]]
    square, *squares = _value_sums(operands, [golden.weights, *squared], torch.square)
    deviation, magnitude = _deviation(golden, square), golden.output.abs()
    output_errors = [
        _output_errors(magnitude, deviation, *each)
        for each in zip(errors, roundings, sums, [None, *squares], strict=True)
    ]
    return [_bound(golden, logits, *each, constants) for each in zip(errors, output_errors, roundings, strict=True)]


def _bound(
    golden: float64.Attention,
    logits: "_Logits",
    softmax: "_SoftmaxErrors",
    output_error: Tensor,
    rounding: Rounding,
    constants: Constants,
) -> _Bound:
    top, tau, denominator = logits.top[..., 0], softmax.tau[..., 0], rounding.denominator
    void = (tau >= VOID) | (denominator >= VOID)
    log_of_sum = golden.lse - top
    lse_rounding = UNIT * (constants.log2 * (log_of_sum + 1) + 2 * log_of_sum + 3 * golden.lse.abs())
    lse_rounding += rounding.lse_top * top.abs()
    lse_error = softmax.shared / LN2 - torch.log2((1 - tau) * (1 - denominator)) + lse_rounding
    any_void = bool(void.any())
    if any_void:
        output_error.masked_fill_(void[..., None], math.inf)
    lse_error = (lse_error * SLACK).masked_fill(void, math.inf)
    return _Bound(output_error, lse_error, void, any_void, lse_rounding, softmax, rounding)


class _Logits:
    """What every form of the bound asks of the base-2 logits of a block; [G, R, 16, 1] unless noted."""

    def __init__(self, golden: float64.Attention) -> None:
        scores = golden.scores
        self.top, self.top_key = scores.max(-1, keepdim=True)  # the largest, and its index
        self.below = self.top - scores  # [G, R, 16, K] how far each is below it
        self.hidden = scores == -math.inf  # [G, R, 16, K]
        self.sum_of_p = torch.exp2(golden.lse[..., None] - self.top)  # in units of the largest p

    @cached_property
    def off_integers(self) -> Tensor:
        """How far from an integer the difference of two logits of a row is at most."""
        return self._off_integers(slice(None))

    @cached_property
    def off_integers_at_least(self) -> Tensor:
        """The same of a few keys."""
        return self._off_integers(PROBE)

    def _off_integers(self, keys: slice) -> Tensor:
        below = self.below[..., keys].masked_fill(self.hidden[..., keys], 0.0)
        return below.sub_(below.round()).abs_().amax(-1, keepdim=True)


@dataclass(frozen=True, slots=True)
class _SoftmaxErrors:
    """Errors of the weights of one block; [G, R, 16, 1] unless noted."""

    worst: Tensor  # the largest error of an exponent, natural units
    at_top: Tensor  # [G, R, 16] that of the largest logit
    shared: Tensor  # [G, R, 16] error that all exponents share: it moves the lse, not the weights
    change: Tensor  # [G, R, 16, K] w T
    spread: Tensor  # sqrt(sum w T^2)
    tau: Tensor  # sum w T
    p_rounding: Tensor  # relative rounding error of P
    top_rounding: Tensor  # of its largest element

    @property
    def centred(self) -> Tensor:
        """Whether the centred form is used, bool."""
        return self.worst <= CENTRED


def _softmax_errors(
    operands: float64.Operands, golden: float64.Attention, logits: _Logits, rounding: Rounding, constants: Constants
) -> _SoftmaxErrors:
    exponent = _exponent_errors(operands, logits, rounding)
    worst, at_top = exponent.amax(-1, keepdim=True), exponent.gather(-1, logits.top_key)
    p_rounding, top_rounding = _p_roundings(logits, worst, rounding, constants)

    # Where one key has more than half the weight, errors are counted relative to its own, which all weights share.
    shared = torch.where(logits.sum_of_p < 2, at_top, 0.0)
    exponent.add_(shared).scatter_(-1, logits.top_key, at_top - shared)
    growth = torch.expm1(exponent.clamp(max=LARGE))
    change = golden.weights * growth
    spread = torch.linalg.vecdot(change, growth)[..., None].sqrt()
    if (worst > LARGE / 2).any():
        grown = torch.exp2(golden.scores - golden.lse[..., None] + exponent / LN2)
        change = torch.where(exponent > LARGE, grown, change)
    return _SoftmaxErrors(
        worst=worst,
        at_top=at_top[..., 0],
        shared=shared[..., 0],
        change=change,
        spread=spread,
        tau=change.sum(-1, keepdim=True) + rounding.log2_keys[..., None].exp2() * FLUSHED,
        p_rounding=p_rounding,
        top_rounding=top_rounding,
    )


def _exponent_errors(operands: float64.Operands, logits: _Logits, rounding: Rounding) -> Tensor:
    """[G, R, 16, K] t_j: the exponential of logit j enters the sums as the exact one times exp(+-t_j); 0 if hidden."""
    errors = torch.empty_like(logits.below)
    for part in operands.parts():
        errors[..., part.place] = _dot_errors(operands, part, rounding).unflatten(1, errors.shape[1:3])
    per_shift, per_top, constant = (
        coefficient[..., None] for coefficient in (rounding.per_shift, rounding.per_top, rounding.constant)
    )
    errors.addcmul_(logits.below, per_shift)
    errors += per_top * logits.top.abs() + constant
    errors.masked_fill_(logits.hidden, 0.0)
    # The kernel's own maximum, from which it shifts, may be off by the largest error of a logit.
    return errors.add_(2 * UNIT * errors.amax(-1, keepdim=True))


def _dot_errors(operands: float64.Operands, part: float64.Part, rounding: Rounding) -> Tensor:
    """[G, M, part] float32: the share of t_j that q . k_j and its scaling have."""
    if rounding.lam is not None:
        return _lengths(operands.query_size, part.size) * (rounding.dot + rounding.scaling)
    # In float32: a sum of n terms that are not negative is off by n u of itself, see SLACK.
    with full_float32():
        size = operands.query_size @ part.size.mT
    exact = exact_dots(operands.query, part.key, size, operands.lanes)
    size *= rounding.dot + rounding.scaling
    if exact is not None:
        size = torch.where(exact, size * (rounding.scaling / (rounding.dot + rounding.scaling)), size)
    return size


def _lengths(query: Tensor, key: Tensor) -> Tensor:
    """[G, M, K] sqrt(sum q^2 k^2) from [G, M, n] and [G, K, n], scaled so that no square overflows or vanishes."""
    query_top, key_top = (values.amax(-1, keepdim=True).clamp_(min=SMALLEST_NORMAL) for values in (query, key))
    with full_float32():
        squares = (query / query_top).square_() @ (key / key_top).square_().mT
    return squares.add_(KEY_DIM * SMALLEST_NORMAL).sqrt_().mul_(query_top).mul_(key_top.mT)


def _p_roundings(logits: _Logits, worst: Tensor, rounding: Rounding, constants: Constants) -> tuple[Tensor, Tensor]:
    """[G, R, 16, 1] relative rounding errors of P: of any element, and of the largest one of the row.

    A power of two is not rounded. P is near one where all logits of a row differ by integers, and its largest element
    is near 2^0 if no other key can have been the maximum; then it is rounded by no more than it is away from it.
    """

    def rounding_error(exponent_error: Tensor) -> Tensor:
        return (torch.expm1(exponent_error.clamp(max=1.0)) + constants.exp2 * UNIT).clamp(max=rounding.p_unit)

    of_any = rounding_error(2 * LN2 * logits.off_integers_at_least + 2 * worst)  # never more than that of all keys
    if (of_any < rounding.p_unit).any():
        of_any = rounding_error(2 * LN2 * logits.off_integers + 2 * worst)
    alone = (logits.below <= 2 / LN2 * worst).sum(-1, keepdim=True) == 1
    of_largest = rounding_error(2 * LN2 * LOGIT_ROUNDINGS * UNIT * logits.top.abs())
    return of_any, torch.where(alone, torch.minimum(of_any, of_largest), of_any)


def _value_weights(
    operands: float64.Operands, golden: float64.Attention, logits: _Logits, errors: _SoftmaxErrors, rounding: Rounding
) -> tuple[Tensor, Tensor]:
    """[G, R, 16, K] each: what |v| is multiplied by in the error of the output, and the largest weights, w (1 + T)."""
    change, g = errors.change, rounding.accumulation[..., None]
    potential = golden.weights + change
    rounded = potential * errors.p_rounding if rounding.lam is None else torch.zeros_like(potential)
    if rounding.p_floor > FLUSHED:
        rounded = torch.maximum(rounded, potential.clamp(max=rounding.p_floor / logits.sum_of_p))
    if rounding.lam is None:
        rounded.scatter_(-1, logits.top_key, potential.gather(-1, logits.top_key) * errors.top_rounding)
    # Where the centred form is not used, weights may change beyond recognition: the triangle inequality.
    weight = (potential + rounded).mul_(g).add_(rounded).add_(FLUSHED).addcmul_(change, (~errors.centred).double())
    return weight.masked_fill_(operands.hidden, 0.0), potential


def _output_errors(
    magnitude: Tensor,
    deviation: Tensor,
    errors: _SoftmaxErrors,
    rounding: Rounding,
    error: Tensor,
    square: Tensor | None,
) -> Tensor:
    """[G, R, 16, 512] F, of the float32 result; meaningless where the bound is void. The last two are overwritten.

    magnitude  |output|
    deviation  of the values, see `_deviation`
    error      the sum of |v| times the first of `_value_weights`
    square     in the lambda form, the sum of v^2 times the square of the second
    """
    denominator = rounding.denominator[..., None]
    # Cauchy-Schwarz about the output, or the triangle inequality.
    error.addcmul_(deviation, torch.where(errors.centred, errors.spread, 0.0))
    of_output = torch.where(errors.centred, 0.0, errors.tau) + (1 + errors.tau) * denominator
    if rounding.lam is not None and square is not None:
        # Independent roundings of P, and of the products: their sum is as long as the vector of the terms.
        bias = rounding.accumulation_bias[..., None]
        error.addcmul_(square.sqrt_(), rounding.lam * (errors.p_rounding + bias))
        of_output = of_output + bias
    remaining = (1 - errors.tau) * (1 - denominator)
    error *= SLACK * (1 + rounding.division) / remaining
    error.addcmul_(magnitude, SLACK * (rounding.division + (1 + rounding.division) * of_output / remaining))
    return error.add_(rounding.floor[..., None])


def _deviation(golden: float64.Attention, square: Tensor) -> Tensor:
    """[G, R, 16, 512] standard deviation of the values about the output, never too small, from their mean square."""
    # Most of the variance may cancel, and with it most of the correct digits.
    return square.addcmul_(golden.output, golden.output, value=-(1 - 2.0**-32)).clamp_(min=0.0).sqrt_()


def _value_sums(operands: float64.Operands, weights: Sequence[Tensor], of: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """[G, R, 16, 512] for each of `weights` [G, R, 16, K]: the sum over keys of weight * of(value)."""
    totals: list[Tensor] = []
    for part in operands.parts():
        values = of(part.value)
        products = [weight[..., part.place].flatten(1, 2) @ values for weight in weights]
        totals = [total.add_(more) for total, more in zip(totals, products, strict=True)] if totals else products
    return [total.unflatten(1, weights[0].shape[1:3]) for total in totals]


def _finite_values(operands: float64.Operands, place: slice, other: float) -> Tensor:
    """[G, place, 512] float64 values, `other` in place of NaN and infinities."""
    return operands.part(place).exact[..., :CKV_DIM].nan_to_num(other, other, other)


@dataclass(frozen=True, slots=True)
class _Hull:
    """Envelope of the void (row, head) of one block."""

    index: Tensor  # [V] row * 16 + head
    bounds: tuple[Tensor, Tensor, Tensor, Tensor]  # output low, high [V, 512], lse low, high [V]


def _hull(operands: float64.Operands, golden: float64.Attention, bound: _Bound) -> _Hull:
    rows, void, rounding = operands.block.rows, bound.void, bound.rounding
    denominator, division = rounding.denominator, rounding.division
    r, g = rounding.p_unit + rounding.log2_keys.exp2() * (rounding.p_floor + FLUSHED), rounding.accumulation
    # Outputs leave the hull of the values by at most this times the largest |value|.
    stretch = (((1 + r) * (1 + g) / (1 - denominator) - 1 + 2 * division) * SLACK).expand(void.shape)
    least, greatest = _extreme_values(operands)
    request, row, _ = void.nonzero(as_tuple=True)
    least, greatest = least[request, row], greatest[request, row]
    slack = stretch[void][:, None] * torch.maximum(least.abs(), greatest.abs()) + SMALLEST_NORMAL

    top, below, above = golden.scores.amax(-1), bound.softmax.at_top / LN2, bound.softmax.worst[..., 0] / LN2
    lse_low = top - below + torch.log2(1 - denominator) - bound.lse_rounding
    lse_high = top + above + rounding.log2_keys - torch.log2(1 - denominator) + bound.lse_rounding
    index = rows[..., None] * NUM_HEADS + torch.arange(NUM_HEADS, device=void.device)
    return _Hull(index[void], (least - slack, greatest + slack, lse_low[void], lse_high[void]))


def _extreme_values(operands: float64.Operands) -> tuple[Tensor, Tensor]:
    """[G, R, 512] each: the least and the greatest finite value among the keys that each row sees."""
    block = operands.block
    first, last = int(block.visible[0]), block.slots.shape[1]
    least = torch.full((len(block.slots), 1, CKV_DIM), math.inf, dtype=torch.float64, device=block.slots.device)
    greatest = -least
    for part in block.key_parts():
        seen_by_all = slice(part.start, min(part.stop, first))
        if seen_by_all.start < seen_by_all.stop:
            values = _finite_values(operands, seen_by_all, math.inf).amin(1, keepdim=True)
            least = torch.minimum(least, values)
            values = _finite_values(operands, seen_by_all, -math.inf).amax(1, keepdim=True)
            greatest = torch.maximum(greatest, values)
    later = slice(first, last)
    least = torch.cat([least, _finite_values(operands, later, math.inf)], 1).cummin(1).values
    greatest = torch.cat([greatest, _finite_values(operands, later, -math.inf)], 1).cummax(1).values
    return least, greatest


def _contaminated(operands: float64.Operands) -> Tensor:
    """[G, R, 16] bool: a NaN or Inf among the keys that the row sees, or in the head's own query."""
    bad_keys = ~torch.cat([part.finite for part in operands.parts()], dim=1)
    bad_query = ~operands.query_finite.unflatten(1, operands.block.shape[1:3])
    return bad_query | (bad_keys.cumsum(1) > 0)[:, operands.block.visible - 1, None]
