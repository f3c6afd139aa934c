"""Numbers from a counter instead of a generator's state.

Every number is a hash of (seed, name, row, column), computed with integer arithmetic that wraps at 64 bits, so that a
row keeps its numbers whatever stands beside it and every device and every version of torch gives the same bits. The
mixer is the finaliser of splitmix64 (Steele, Lea, Flood 2014, variant 13 of Stafford).
"""

from typing import Any

import numpy as np
import torch

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_LANES = 0x0000FFFF0000FFFF
# 64-bit temporaries of this many elements stay in a core's second-level cache
_CPU_CHUNK = 1 << 16
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
    put = _put_bell_in_numpy if _in_numpy(counters.device) else _put_bell
    for start in range(0, count, chunk):
        part = slice(start, start + chunk)
        put(rows[part, None], column, 2.0 ** (exponent - 15), out[part])
    return out


def _put_bell(row: torch.Tensor, column: torch.Tensor, scale: float, out: torch.Tensor) -> None:
    """`bell` of hashed rows [n, 1] and columns."""
    x = row + column
    spare = torch.empty_like(x)
    _mix_(x, spare)
    torch.bitwise_right_shift(x, 16, out=spare)
    x.bitwise_and_(_LANES)
    # from here on no sum leaves its 32 bits
    halves = x.view(torch.int32).add_(spare.bitwise_and_(_LANES).view(torch.int32))
    torch.bitwise_right_shift(x, 32, out=spare)
    halves.add_(spare.view(torch.int32))
    centre = torch.tensor(-131070 * scale)  # a number, wherever the rows are
    out.copy_(torch.add(centre, halves[:, ::2], alpha=scale))


def _put_bell_in_numpy(row: torch.Tensor, column: torch.Tensor, scale: float, out: torch.Tensor) -> None:
    """The same on a CPU in little more than half the time: NumPy has unsigned integers, and multiplies them faster."""
    x = _unsigned(row) + _unsigned(column)
    spare = np.empty_like(x)
    _mix_in_numpy_(x, spare)
    lanes, others = x.view(np.uint32), spare.view(np.uint32)
    np.right_shift(lanes, np.uint32(16), out=others)
    np.bitwise_and(lanes, np.uint32(0xFFFF), out=lanes)
    np.add(lanes, others, out=lanes)
    np.multiply(x, np.uint64((1 << 32) + 1), out=x)  # the upper half is now the sum of both
    np.right_shift(x, np.uint64(32), out=x)
    # as the mantissa of a float64 whose last bit is worth `scale`, the sum is multiplied by it
    above = np.float64(2.0**52 * scale)
    np.bitwise_or(x, above.view(np.uint64), out=x)
    numbers = x.view(np.float64)
    np.subtract(numbers, above + 131070 * scale, out=numbers)
    out.copy_(torch.from_numpy(numbers))


def _mix_(x: torch.Tensor, spare: torch.Tensor) -> torch.Tensor:
    """`mix` in place; `spare` is scratch of the same shape."""
    if _in_numpy(x.device):
        _mix_in_numpy_(_unsigned(x), _unsigned(spare))
        return x
    for shift, multiplier in _ROUNDS:
        torch.bitwise_right_shift(x, shift, out=spare)
        x.bitwise_xor_(spare.bitwise_and_((1 << 64 - shift) - 1))
        if multiplier is not None:
            x.mul_(_signed(multiplier))
    return x


_ROUNDS = ((30, _MULTIPLIERS[0]), (27, _MULTIPLIERS[1]), (31, None))


def _mix_in_numpy_(x: np.ndarray[Any, Any], spare: np.ndarray[Any, Any]) -> None:
    for shift, multiplier in _ROUNDS:
        np.right_shift(x, np.uint64(shift), out=spare)
        np.bitwise_xor(x, spare, out=x)
        if multiplier is not None:
            np.multiply(x, np.uint64(multiplier), out=x)


def _in_numpy(device: torch.device) -> bool:
    return device.type == "cpu"


def _unsigned(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """The same memory as uint64."""
    return x.numpy().view(np.uint64)


def _shift(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift right: torch's own keeps the sign."""
    return (x >> bits).bitwise_and_((1 << 64 - bits) - 1)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x
