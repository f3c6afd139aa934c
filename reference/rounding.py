"""How many roundings stand between a row's inputs and its results: the counts of docs/error-bound.md, sections 2 to 4.

Of the inputs, only the number of keys that a row sees matters here, besides sm_scale and the dtype.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .blocks import KEY_DIM
from .constants import UNIT, Constants
from .profile import Profile

LN2 = math.log(2)
SMALLEST_NORMAL, SMALLEST_SUBNORMAL = 2.0**-126, 2.0**-149

# A logit: log2(e), its product with sm_scale, that times q . k, and the sum of the two products of q . k.
LOGIT_ROUNDINGS = 4
# A shifted logit as an argument of exp2: the subtraction; two more where it passes through base e.
SHIFT_ROUNDINGS = 3
# Sums of P along a row: partial sums of a quarter of the keys (a quad of threads), then a tree over threads and warps.
SUM_CHAINS, SUM_TREE = 4, 64
# Keys that the last instruction of a row is padded by.
PADDING = 16


@dataclass(frozen=True, slots=True)
class Rounding:
    """Error coefficients of the rows of a block. Tensors are [R, 1], to be broadcast over [G, R, 16]; float64.

    The exponent of key j, in natural units, errs by at most
        per_size * sum |q||k_j| + per_shift * (m - x_j) + per_top * |m| + constant,    x_j = base-2 logit, m = max x_j
    where `per_size` splits into the dot product (`dot`, absent where it is exact) and the scaling (`scaling`).
    """

    dot: float
    scaling: float
    per_shift: Tensor
    per_top: Tensor
    constant: Tensor
    accumulation: Tensor  # relative to sum w |v|: products with V, their sums, rescaling, merging of splits
    accumulation_bias: Tensor  # relative to |output|; only in the lambda form
    denominator: Tensor  # relative error of sum p
    floor: Tensor  # absolute error of an output element by underflow
    p_unit: float  # relative rounding error of an element of P
    p_floor: float  # its absolute rounding error where P underflows
    division: float
    lse_top: float  # further error of the lse, relative to |m|
    log2_keys: Tensor
    lam: float | None  # lambda, in the lambda form


def rounding_of(
    visible: Tensor,
    most: int,
    sm_scale: float,
    dtype: torch.dtype,
    profile: Profile,
    constants: Constants,
    lam: float | None,
) -> Rounding:
    """Coefficients for rows that see `visible` [R] keys, `most` at most. With `lam` those of the lambda form, sqrt(n)
    for n."""
    size = 1 << (most - 1).bit_length()
    counted = _Counted(*_table(size, profile, constants, lam, visible.device)[:, visible - 1, None])
    u, scale = UNIT, abs(sm_scale) / LN2
    tiny = SMALLEST_NORMAL if profile.flushes_subnormals else SMALLEST_SUBNORMAL
    underflow = LN2 * (scale * KEY_DIM * SMALLEST_SUBNORMAL + 2 * tiny)
    p_type = torch.finfo(profile.p_dtype or dtype)
    p_unit = p_type.eps / 2
    if lam is None:
        dot = constants.kappa * KEY_DIM * u
        scaling = u
    else:
        dot = lam * math.sqrt(KEY_DIM) * u
        scaling = lam * u
    denominator = counted.denominator
    if profile.denominator_from_rounded_p:
        denominator = denominator + (p_unit + constants.kappa * (visible.double()[:, None] + PADDING) * u)
    accumulation, floor = counted.accumulation, counted.floor
    if profile.rounded_partials:
        split, partial = visible[:, None] > profile.smallest_tile, torch.finfo(dtype)
        accumulation = accumulation + split * (partial.eps / 2) * (1 + accumulation)
        floor = floor + split * max(tiny, partial.smallest_normal * partial.eps / 2)

    return Rounding(
        dot=LN2 * scale * dot,
        scaling=LN2 * (scale * scaling + tiny),
        per_shift=counted.per_shift,
        per_top=counted.per_top,
        constant=counted.constant + underflow,
        accumulation=accumulation,
        accumulation_bias=counted.accumulation_bias,
        denominator=denominator,
        floor=floor,
        p_unit=p_unit,
        p_floor=p_type.smallest_normal * p_type.eps / 2,
        division=(constants.division + 1) * u,
        lse_top=2 * u * profile.raw_maximum,
        log2_keys=counted.log2_keys,
        lam=lam,
    )


class _Counted(NamedTuple):
    """The coefficients of `Rounding` that the number of keys decides, alike in shape; `constant` without underflow,
    `denominator` from unrounded P."""

    per_shift: Tensor
    per_top: Tensor
    constant: Tensor
    accumulation: Tensor
    accumulation_bias: Tensor
    denominator: Tensor
    floor: Tensor
    log2_keys: Tensor


@lru_cache(maxsize=64)
def _table(size: int, profile: Profile, constants: Constants, lam: float | None, device: torch.device) -> Tensor:
    """[8, size] the coefficients `_Counted` for 1 .. size keys; some fifty small operations that need no repeating."""
    u, exp2, log2 = UNIT, constants.exp2 * UNIT, constants.log2 * UNIT
    tiny = SMALLEST_NORMAL if profile.flushes_subnormals else SMALLEST_SUBNORMAL
    keys = torch.arange(1, size + 1, dtype=torch.float64, device=device)
    tiles = torch.ceil(keys / profile.smallest_tile)
    split = (tiles > 1).double()  # a context of one tile is not split
    rescales = tiles if lam is None else torch.minimum(tiles, 4 + 3 * torch.log(tiles + 1))
    log2_keys = keys.log2()

    logit = float(LOGIT_ROUNDINGS)
    if lam is not None:  # truncation is biased towards zero, by up to 2 u of the sum in each instruction
        logit += 2 * KEY_DIM / constants.instruction_keys
    raw = (3 * rescales + 1) * profile.raw_maximum
    merge = exp2 + LN2 * (log2 * log2_keys.clamp(min=1) + 2 * u * log2_keys)
    products, sums = keys + PADDING, rescales + tiles + split * (tiles + 8)
    chain = keys / SUM_CHAINS + SUM_TREE + rescales + split * tiles
    if lam is None:
        bias = torch.zeros_like(keys)
        accumulation = (constants.kappa * products + sums) * u
        denominator = chain * u
    else:
        bias = 2 * products / constants.instruction_keys * u
        accumulation = lam * (products + sums).sqrt() * u
        denominator = lam * chain.sqrt() * u

    counted = _Counted(
        per_shift=LN2 * u * (logit + SHIFT_ROUNDINGS + 2 * split + raw),
        per_top=LN2 * u * (logit + split + raw),
        constant=(1 + rescales) * exp2 + split * merge,
        accumulation=accumulation,
        accumulation_bias=bias,
        denominator=denominator,
        floor=(keys + 2 * (rescales + tiles + 8)) * (tiny if profile.flushes_subnormals else tiny / 2),
        log2_keys=log2_keys,
    )
    return torch.stack(counted)
