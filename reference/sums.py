"""How far the sums over the keys may be off, and with them output and lse: docs/error-bound.md, sections 4 to 6."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernel.contract import CKV_DIM

from . import float64
from .constants import UNIT, Constants
from .float64 import value_sum
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
    operands: float64.Operands,
    golden: float64.Attention,
    roundings: Sequence[Rounding],
    constants: Constants,
    output_errors: Sequence[Tensor],
) -> list[Bound]:
    """The bounds of one block, one for each of `roundings`: the rigorous form and, after it, any in the lambda form.
    What they have in common is computed once. Those of the outputs are put into `output_errors` [G, R, 16, 512]."""
    logits = Logits(golden)
    errors = [weight_errors(operands, golden, logits, rounding, constants) for rounding in roundings]
    shares = [_shares(golden, logits, *pair) for pair in zip(errors, roundings, strict=True)]
    _put_output_errors(operands, golden, shares, output_errors)
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


@dataclass(frozen=True, slots=True)
class _Shares:
    """What the error of an output element is made of, rows and heads as one dimension: the sum of |v| with some weights
    [G, R * 16, K], and multiples [G, R * 16, 1] of other quantities of the element."""

    values: Tensor  # the weights
    deviation: Tensor  # of the values about the output
    length: Tensor | None  # in the lambda form, of the vector of w (1 + T) v
    squares: Tensor | None  # and the squares of w (1 + T), [G, R * 16, K]
    magnitude: Tensor  # |output|
    floor: Tensor  # one


def _shares(golden: float64.Attention, logits: Logits, errors: WeightErrors, rounding: Rounding) -> _Shares:
    denominator, factor = rounding.denominator[..., None], _quotient(errors, rounding)
    values, potential = _value_weights(golden, logits, errors, rounding)
    of_output = torch.where(errors.centred, 0.0, errors.tau) + (1 + errors.tau) * denominator
    length = squares = None
    if rounding.lam is not None:
        # Independent roundings of P, and of the products: their sum is as long as the vector of the terms.
        bias = rounding.accumulation_bias[..., None]
        length = (rounding.lam * (errors.p_rounding + bias) * factor).flatten(1, 2)
        squares = potential.square_().flatten(1, 2)
        of_output = of_output + bias
    # Cauchy-Schwarz about the output, or the triangle inequality.
    deviation = torch.where(errors.centred, errors.spread, 0.0) * factor
    return _Shares(
        values=values.mul_(factor).flatten(1, 2),
        deviation=deviation.flatten(1, 2),
        length=length,
        squares=squares,
        magnitude=(SLACK * rounding.division + factor * of_output).flatten(1, 2),
        floor=rounding.floor[..., None].expand_as(factor).flatten(1, 2),
    )


def _put_output_errors(
    operands: float64.Operands, golden: float64.Attention, shares: Sequence[_Shares], errors: Sequence[Tensor]
) -> None:
    """Into `errors` [G, R, 16, 512], for each form, F of the float32 result; meaningless where the bound is void."""
    outputs, *into = (result.view(result.shape[0], -1, CKV_DIM) for result in (golden.output, *errors))
    weights = golden.weights.flatten(1, 2)
    for heads, keys in operands.block.pieces():
        output = outputs[:, heads]
        deviation = _deviation(output, value_sum(operands, weights[:, heads], keys, lambda part: part.value_square))
        magnitude = output.abs()
        for share, error_of in zip(shares, into, strict=True):
            error = value_sum(operands, share.values[:, heads], keys, lambda part: part.value_size)
            error.addcmul_(deviation, share.deviation[:, heads])
            if share.squares is not None and share.length is not None:
                square = value_sum(operands, share.squares[:, heads], keys, lambda part: part.value_square)
                error.addcmul_(square.sqrt_(), share.length[:, heads])
            error.addcmul_(magnitude, share.magnitude[:, heads])
            torch.add(error, share.floor[:, heads], out=error_of[:, heads])


def _deviation(output: Tensor, square: Tensor) -> Tensor:
    """[G, M, 512] standard deviation of the values about the output, never too small, from their mean square, which is
    overwritten."""
    # Most of the variance may cancel, and with it most of the correct digits.
    return square.addcmul_(output, output, value=-(1 - 2.0**-32)).clamp_(min=0.0).sqrt_()
