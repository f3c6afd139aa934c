"""Numbers from a counter instead of a generator's state.

Every number is a hash of (seed, name, row, column), computed with integer arithmetic that wraps at 64 bits, so that a
row keeps its numbers whatever stands beside it and every device and every version of torch gives the same bits. The
mixer is the finaliser of splitmix64 (Steele, Lea, Flood 2014, variant 13 of Stafford).
"""

import torch

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_LANES = 0x0000FFFF0000FFFF
# int64 temporaries of this many elements stay in a core's second-level cache
_CPU_CHUNK = 1 << 15
_GPU_CHUNK = 1 << 24


def mix(x: int) -> int:
    """A bijection of the unsigned 64-bit integers in which every input bit reaches every output bit."""
    x ^= x >> 30
    x = x * _MULTIPLIERS[0] & _MASK
    x ^= x >> 27
    x = x * _MULTIPLIERS[1] & _MASK
    return x ^ x >> 31


def key(seed: int, name: str) -> int:
    """The 64-bit key of the stream `name` of a seed."""
    state = mix(seed + _GOLDEN & _MASK)
    for byte in name.encode():
        state = mix((state ^ byte) + _GOLDEN & _MASK)
    return state


def hashes(stream: int, counters: torch.Tensor) -> torch.Tensor:
    """One hash for each int64 counter, as int64 of the same shape; every bit pattern may occur."""
    x = counters.mul(_signed(_GOLDEN)).add_(_signed(stream))
    return _mix_(x, torch.empty_like(x))


def below(stream: int, counters: torch.Tensor, bound: torch.Tensor | int) -> torch.Tensor:
    """One int64 of 0 .. bound - 1 for each counter; where the bound is below 1, zero."""
    x = _shift(hashes(stream, counters), 1)
    return x.remainder_(bound.clamp(min=1) if isinstance(bound, torch.Tensor) else max(bound, 1))


def bell(stream: int, counters: torch.Tensor, columns: int, exponent: int, dtype: torch.dtype) -> torch.Tensor:
    """Bell-shaped numbers [len(counters), columns]: mean 0, deviation 1.155 * 2^exponent, at most 4 * 2^exponent.

    The sum of four uniform 16-bit integers, centred, times a power of two, rounded to nearest even: exact until that
    rounding, so the full mantissa of `dtype` occurs and the bits are the same everywhere.
    """
    count = counters.shape[0]
    x = torch.cat((counters, torch.arange(columns, device=counters.device))).mul_(_signed(_GOLDEN))
    x[:count].add_(_signed(stream))
    x[count:].add_(_signed(mix(stream)))
    rows, column = _mix_(x, torch.empty_like(x)).split((count, columns))  # the hashes of two streams
    out = torch.empty(count, columns, dtype=dtype, device=counters.device)
    chunk = max(1, (_CPU_CHUNK if counters.device.type == "cpu" else _GPU_CHUNK) // columns)
    scale = 2.0 ** (exponent - 15)
    centre = torch.tensor(-131070 * scale)  # a number, wherever the counters are
    for start in range(0, count, chunk):
        x = rows[start : start + chunk, None] + column
        spare = torch.empty_like(x)
        _mix_(x, spare)
        torch.bitwise_right_shift(x, 16, out=spare)
        x.bitwise_and_(_LANES)
        # from here on no sum leaves its 32 bits
        halves = x.view(torch.int32).add_(spare.bitwise_and_(_LANES).view(torch.int32))
        torch.bitwise_right_shift(x, 32, out=spare)
        halves.add_(spare.view(torch.int32))
        out[start : start + chunk] = torch.add(centre, halves[:, ::2], alpha=scale)
    return out


def _mix_(x: torch.Tensor, spare: torch.Tensor) -> torch.Tensor:
    """`mix` in place; `spare` is scratch of the same shape."""
    for shift, multiplier in ((30, _MULTIPLIERS[0]), (27, _MULTIPLIERS[1]), (31, None)):
        torch.bitwise_right_shift(x, shift, out=spare)
        x.bitwise_xor_(spare.bitwise_and_((1 << 64 - shift) - 1))
        if multiplier is not None:
            x.mul_(_signed(multiplier))
    return x


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift right: torch's own keeps the sign."""
    return (x >> bits).bitwise_and_((1 << 64 - bits) - 1)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x
