"""How far the sums over the keys may be off, and with them output and lse: docs/error-bound.md, sections 4 to 6."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import float64
from .constants import UNIT, Constants
from .rounding import LN2, Rounding
from .weights import FLUSHED, Logits, WeightErrors, weight_errors

# Covers what the derivation drops: products of small errors, float64's own, and those of sum |q||k| in float32 (576 u).
SLACK = 1.001
# From this error of the sum of weights on, the bound is void: the weights say nothing more.
VOID = 0.5


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound of one block, [G, R, 16], and what its envelope follows from."""

    output_error: Tensor  # [G, R, 16, 512]
    lse_error: Tensor
    void: Tensor
    any_void: bool
    lse_rounding: Tensor  # the roundings of the lse itself
    weights: WeightErrors
    rounding: Rounding


def bounds_of(
    operands: float64.Operands, golden: float64.Attention, roundings: Sequence[Rounding], constants: Constants
) -> list[Bound]:
    """The bounds of one block, one for each of `roundings`: the rigorous form and, after it, any in the lambda form.
    What they have in common is computed once."""
    logits = Logits(golden)
    errors = [weight_errors(operands, golden, logits, rounding, constants) for rounding in roundings]
    factors = [_quotient(*pair) for pair in zip(errors, roundings, strict=True)]
    weights = [_value_weights(golden, logits, *pair) for pair in zip(errors, roundings, strict=True)]
    scaled = [weight.mul_(factor) for (weight, _), factor in zip(weights, factors, strict=True)]
    sums = _value_sums(operands, scaled, lambda part: part.value_size)
    squared = [potential.square_() for _, potential in weights[1:]]
    square, *squares = _value_sums(operands, [golden.weights, *squared], lambda part: part.value_square)
    deviation, magnitude = _deviation(golden, square), golden.output.abs()
    output_errors = [
        _output_errors(magnitude, deviation, *each)
        for each in zip(errors, roundings, factors, sums, [None, *squares], strict=True)
    ]
    lse_rounding = _lse_rounding(golden, logits, constants)
    return [_bound(logits, lse_rounding, *each) for each in zip(errors, output_errors, roundings, strict=True)]


def _bound(
    logits: Logits, lse_rounding: Tensor, weights: WeightErrors, output_error: Tensor, rounding: Rounding
) -> Bound:
    tau, denominator = weights.tau[..., 0], rounding.denominator
    void = (tau >= VOID) | (denominator >= VOID)
    lse_rounding = lse_rounding + rounding.lse_top * logits.top[..., 0].abs()
    lse_error = weights.shared / LN2 - torch.log2((1 - tau) * (1 - denominator)) + lse_rounding
    any_void = bool(void.any())
    if any_void:
        output_error.masked_fill_(void[..., None], math.inf)
    lse_error = (lse_error * SLACK).masked_fill(void, math.inf)
    return Bound(output_error, lse_error, void, any_void, lse_rounding, weights, rounding)


def _lse_rounding(golden: float64.Attention, logits: Logits, constants: Constants) -> Tensor:
    """[G, R, 16] the roundings of the logarithm, of its base, and of its sum with the maximum."""
    log_of_sum = golden.lse - logits.top[..., 0]
    return UNIT * (constants.log2 + (constants.log2 + 2) * log_of_sum + 3 * golden.lse.abs())


def _quotient(errors: WeightErrors, rounding: Rounding) -> Tensor:
    """[G, R, 16, 1] what the division by the sum of weights makes of an error of the numerator."""
    return SLACK * (1 + rounding.division) / ((1 - errors.tau) * (1 - rounding.denominator[..., None]))


def _value_weights(
    golden: float64.Attention, logits: Logits, errors: WeightErrors, rounding: Rounding
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
    return weight.masked_fill_(logits.hidden, 0.0), potential


def _output_errors(
    magnitude: Tensor,
    deviation: Tensor,
    errors: WeightErrors,
    rounding: Rounding,
    factor: Tensor,
    error: Tensor,
    square: Tensor | None,
) -> Tensor:
    """[G, R, 16, 512] F, of the float32 result; meaningless where the bound is void. The last two are overwritten.

    magnitude  |output|
    deviation  of the values, see `_deviation`
    factor     `_quotient`
    error      the sum of |v| times factor and the first of `_value_weights`
    square     in the lambda form, the sum of v^2 times the square of the second
    """
    denominator = rounding.denominator[..., None]
    # Cauchy-Schwarz about the output, or the triangle inequality.
    error.addcmul_(deviation, torch.where(errors.centred, errors.spread, 0.0) * factor)
    of_output = torch.where(errors.centred, 0.0, errors.tau) + (1 + errors.tau) * denominator
    if rounding.lam is not None and square is not None:
        # Independent roundings of P, and of the products: their sum is as long as the vector of the terms.
        bias = rounding.accumulation_bias[..., None]
        error.addcmul_(square.sqrt_(), rounding.lam * (errors.p_rounding + bias) * factor)
        of_output = of_output + bias
    error.addcmul_(magnitude, SLACK * rounding.division + factor * of_output)
    return error.add_(rounding.floor[..., None])


def _deviation(golden: float64.Attention, square: Tensor) -> Tensor:
    """[G, R, 16, 512] standard deviation of the values about the output, never too small, from their mean square."""
    # Most of the variance may cancel, and with it most of the correct digits.
    return square.addcmul_(golden.output, golden.output, value=-(1 - 2.0**-32)).clamp_(min=0.0).sqrt_()


def _value_sums(
    operands: float64.Operands, weights: Sequence[Tensor], of: Callable[[float64.Part], Tensor]
) -> list[Tensor]:
    """[G, R, 16, 512] for each of `weights` [G, R, 16, K]: the sum over keys of weight * of(part)."""
    totals: list[Tensor] = []
    for part in operands.parts():
        values = of(part)
        products = [weight[..., part.place].flatten(1, 2) @ values for weight in weights]
        totals = [total.add_(more) for total, more in zip(totals, products, strict=True)] if totals else products
    return [total.unflatten(1, operands.block.shape[1:3]) for total in totals]
