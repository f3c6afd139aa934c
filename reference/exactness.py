"""Which dot products float32 computes exactly, in any order and on any tensor core.

If all products are multiples of a power of two and their absolute values add up to at most 2^24 times it, every partial
sum is a float32 number; a tensor core that keeps 23 bits or more below its largest summand then truncates nothing.
"""

from functools import lru_cache

import torch
from torch import Tensor

from .rounding import SMALLEST_SUBNORMAL

# 2^24, less what float32 may lose of the sum of absolute values.
LIMIT = 2.0**24 * (1 - 2.0**-10)
# A few columns tell where nothing is exact: a power of two that divides all columns divides these.
PROBE = 32


def quantum(values: Tensor) -> Tensor:
    """The greatest power of two that divides all of the last dimension; inf where all are zero.

    values [..., n] bfloat16 or float16 -> [...] float64.
    """
    place = values.contiguous().view(torch.int16).int().add_(1 << 15)
    of_each = _quanta(values.dtype, values.device).index_select(0, place.flatten())
    return of_each.view(place.shape).amin(-1).double()


@lru_cache
def _quanta(dtype: torch.dtype, device: torch.device) -> Tensor:
    """[2^16] float32, of each 16-bit float the greatest power of two that divides it, in the order of their bits as
    signed integers."""
    mantissa_bits = {torch.bfloat16: 7, torch.float16: 10}[dtype]
    bits = torch.arange(-(1 << 15), 1 << 15, device=device).to(torch.int16)
    sign = torch.iinfo(torch.int16).min
    # Clears the lowest bit of the mantissa, the implicit one if there is no other.
    rest = torch.where(bits & ((1 << mantissa_bits) - 1) != 0, bits & (bits - 1), bits & sign)
    lowest = (bits.view(dtype).float() - rest.view(dtype).float()).abs()
    return lowest.masked_fill_(lowest == 0, torch.inf)


def exact_dots(query: Tensor, key: Tensor, size: Tensor, lanes: slice | Tensor) -> Tensor | None:
    """[G, M, K] bool: query [G, M, n] . key [G, K, n] is exact, given size [G, M, K] = sum |q||k| and the `lanes` in
    which any query is not zero, int64; None if nowhere."""
    query, key = _of(query, lanes), _of(key, lanes)
    if query.shape[-1] == 0:
        return torch.ones_like(size, dtype=torch.bool)
    at_most = quantum(torch.cat([query[..., :PROBE], key[..., :PROBE]], dim=1)).split([query.shape[1], key.shape[1]], 1)
    if size.min() > LIMIT * at_most[0].max() * at_most[1].max():
        return None
    product = quantum(query)[:, :, None] * quantum(key)[:, None, :]
    return (size <= LIMIT * product) & (product >= SMALLEST_SUBNORMAL)


def _of(values: Tensor, lanes: slice | Tensor) -> Tensor:
    """Some columns; neighbours are not copied."""
    return values[..., lanes] if isinstance(lanes, slice) else values.index_select(-1, lanes)
