"""How far the softmax weights of a correct kernel may be off: docs/error-bound.md, sections 2 and 3.

Base-2 logits x_j, the largest of a row m; t_j is the error of an exponent, T_j = exp(t_j) - 1 that of a weight w_j.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from . import float64
from .blocks import KEY_DIM
from .constants import UNIT, Constants
from .exactness import exact_dots
from .precision import full_float32
from .rounding import LN2, LOGIT_ROUNDINGS, SMALLEST_NORMAL, Rounding

# Where the exponent of a weight may be off by more than this, the centred form is not used.
CENTRED = 1.0
# exp(t) - 1 is taken of at most this; a larger exponent is added to the logit first, so that nothing overflows.
LARGE = 30.0
# Keys that show where the logits of a row do not differ by integers.
PROBE = slice(0, 16)
# What exp2 flushes to zero, of P or of a factor that rescales it; relative to the largest p, which is 1.
FLUSHED = SMALLEST_NORMAL


class Logits:
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
class WeightErrors:
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


def weight_errors(
    operands: float64.Operands, golden: float64.Attention, logits: Logits, rounding: Rounding, constants: Constants
) -> WeightErrors:
    """The errors that a rounding leaves in the weights of one block."""
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
    return WeightErrors(
        worst=worst,
        at_top=at_top[..., 0],
        shared=shared[..., 0],
        change=change,
        spread=spread,
        tau=change.sum(-1, keepdim=True) + rounding.log2_keys[..., None].exp2() * FLUSHED,
        p_rounding=p_rounding,
        top_rounding=top_rounding,
    )


def _exponent_errors(operands: float64.Operands, logits: Logits, rounding: Rounding) -> Tensor:
    """[G, R, 16, K] t_j: the exponential of logit j enters the sums as the exact one times exp(+-t_j); 0 if hidden."""
    dots = [_dot_errors(operands, part, rounding) for part in operands.parts()]
    errors = float64.joined(dots).view(logits.below.shape).double()
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
    size = _sizes(operands, part)
    exact = exact_dots(operands.query, part.key, size, operands.lanes)
    size *= rounding.dot + rounding.scaling
    if exact is not None:
        size = torch.where(exact, size * (rounding.scaling / (rounding.dot + rounding.scaling)), size)
    return size


def _sizes(operands: float64.Operands, part: float64.Part) -> Tensor:
    """[G, M, part] sum |q||k_j|. In float32: a sum of n terms that are not negative is off by n u of itself, see
    bounds.SLACK."""
    query, key = operands.query_size, part.size.mT
    if key.device.type == "cpu" and part.gathered.any_subnormal:  # a core multiplies them a hundred times as slowly
        return (query.double() @ key.double()).float()
    with full_float32():
        return query @ key


def _lengths(query: Tensor, key: Tensor) -> Tensor:
    """[G, M, K] sqrt(sum q^2 k^2) from [G, M, n] and [G, K, n], scaled so that no square overflows or vanishes."""
    query_top, key_top = (values.amax(-1, keepdim=True).clamp_(min=SMALLEST_NORMAL) for values in (query, key))
    with full_float32():
        squares = (query / query_top).square_() @ (key / key_top).square_().mT
    return squares.add_(KEY_DIM * SMALLEST_NORMAL).sqrt_().mul_(query_top).mul_(key_top.mT)


def _p_roundings(logits: Logits, worst: Tensor, rounding: Rounding, constants: Constants) -> tuple[Tensor, Tensor]:
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
