"""What holds where the bound is void, whatever the weights are: docs/error-bound.md, section 7."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernel.contract import CKV_DIM, NUM_HEADS

from . import float64
from .rounding import LN2, SMALLEST_NORMAL
from .sums import SLACK, Bound
from .weights import FLUSHED


@dataclass(frozen=True, slots=True)
class Envelope:
    """Envelope of the void (row, head) of one block."""

    index: Tensor  # [V] row * 16 + head
    bounds: tuple[Tensor, Tensor, Tensor, Tensor]  # output low, high [V, 512], lse low, high [V]


def envelope_of(operands: float64.Operands, golden: float64.Attention, bound: Bound) -> Envelope:
    """The hull of the values that a row sees, and the largest logit, both as far as roundings may stretch them."""
    rows, void, rounding = operands.block.rows, bound.void, bound.rounding
    denominator, division = rounding.denominator, rounding.division
    r, g = rounding.p_unit + rounding.log2_keys.exp2() * (rounding.p_floor + FLUSHED), rounding.accumulation
    # Outputs leave the hull of the values by at most this times the largest |value|.
    stretch = (((1 + r) * (1 + g) / (1 - denominator) - 1 + 2 * division) * SLACK).expand(void.shape)
    least, greatest = _extreme_values(operands)
    request, row, _ = void.nonzero(as_tuple=True)
    least, greatest = least[request, row], greatest[request, row]
    slack = stretch[void][:, None] * torch.maximum(least.abs(), greatest.abs()) + SMALLEST_NORMAL

    top, below, above = golden.scores.amax(-1), bound.weights.at_top / LN2, bound.weights.worst[..., 0] / LN2
    lse_low = top - below + torch.log2(1 - denominator) - bound.lse_rounding
    lse_high = top + above + rounding.log2_keys - torch.log2(1 - denominator) + bound.lse_rounding
    index = rows[..., None] * NUM_HEADS + torch.arange(NUM_HEADS, device=void.device)
    return Envelope(index[void], (least - slack, greatest + slack, lse_low[void], lse_high[void]))


def _extreme_values(operands: float64.Operands) -> tuple[Tensor, Tensor]:
    """[G, R, 512] each: the least and the greatest finite value among the keys that each row sees."""
    requests, _, _, last = operands.block.shape
    first, device = int(operands.block.visible[0]), operands.block.visible.device
    least = torch.full((requests, 1, CKV_DIM), math.inf, dtype=torch.float64, device=device)
    greatest = -least
    for part in operands.parts():
        seen_by_all = slice(part.place.start, min(part.place.stop, first))
        if seen_by_all.start < seen_by_all.stop:
            values = _finite_values(operands, seen_by_all, math.inf).amin(1, keepdim=True)
            least = torch.minimum(least, values)
            values = _finite_values(operands, seen_by_all, -math.inf).amax(1, keepdim=True)
            greatest = torch.maximum(greatest, values)
    later = slice(first, last)
    least = torch.cat([least, _finite_values(operands, later, math.inf)], 1).cummin(1).values
    greatest = torch.cat([greatest, _finite_values(operands, later, -math.inf)], 1).cummax(1).values
    return least, greatest


def _finite_values(operands: float64.Operands, place: slice, other: float) -> Tensor:
    """[G, place, 512] float64 values, `other` in place of NaN and infinities."""
    values: Tensor = operands.keys.part(place).exact[..., :CKV_DIM]
    return values.nan_to_num(other, other, other)
