"""A paged MLA kernel on an emulated GPU: tensor cores that truncate, an exp2 and a log2 that err, tiles, splits.

One tensor core instruction (MMA-Sim, arXiv:2511.10909) adds a few exact products to the accumulator: all summands are
aligned to the largest exponent among them, truncated to so many fraction bits, added exactly, and the sum is truncated
to float32. `Kernel.fault` plants one of the faults that kernels of this family have had.
"""

from dataclasses import dataclass

import numpy as np
import torch

from kernel.contract import CKV_DIM, Inputs
from reference.constants import UNIT, Constants
from reference.float64 import LOG2_E

FAULTS = (
    "scale 1 % off",
    "scale of 576 dimensions",
    "last key dropped",
    "a page read twice",
    "rotary part left out",
    "output not rescaled",
    "denominator not rescaled",
    "accumulator in 16 bits",
    "scores in 16 bits",
    "P in 4 bits",
    "output truncated",
    "natural lse",
    "lse without the maximum",
)


@dataclass(frozen=True)
class Result:
    """What a kernel computed; float64 arrays."""

    value: np.ndarray  # [total_q, 16, 512] float32 numbers
    output: np.ndarray  # the same in the output's dtype
    lse: np.ndarray  # [total_q, 16] float32 numbers


@dataclass(frozen=True)
class Kernel:
    """An implementation and its machine."""

    constants: Constants  # exp2 and log2 err by 0.9 of their limits, with random sign
    fraction_bits: int | None = 25  # None: float32 products and sums in sequence, each rounded to nearest
    tile: int = 64
    splits: int = 1
    backwards: bool = False
    natural: bool = False  # base e inside
    raw_maximum: bool = False  # the maximum is that of q . k, and scaled anew in each shift
    rounded_denominator: bool = False  # the sum of P after rounding
    rounded_partials: bool = False  # the output of a split in 16 bits
    fault: str | None = None
    seed: int = 0

    def __call__(self, inputs: Inputs) -> Result:
        value = np.zeros((inputs.total_q, 16, CKV_DIM))
        lse = np.full((inputs.total_q, 16), -np.inf)
        for request in range(inputs.batch):
            row, end = inputs.qo_indptr[request : request + 2].tolist()
            first, last = inputs.kv_indptr[request : request + 2].tolist()
            pages = inputs.kv_indices[first:last].long()
            key = torch.cat([inputs.ckv_cache[pages, 0], inputs.kpe_cache[pages, 0]], -1).double().numpy()
            query = torch.cat([inputs.q_nope[row:end], inputs.q_pe[row:end]], -1).double().numpy()
            for i in range(end - row):
                visible = (last - first) - (end - row) + i + 1
                if visible > 0:
                    value[row + i], lse[row + i] = self._row(inputs, query[i], key[:visible])
        if self.fault == "output truncated":
            bits = value.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
            return Result(value, bits.view(np.float32).astype(np.float64), lse)
        return Result(value, narrow(value, inputs.q_nope.dtype), lse)

    def _row(self, inputs: Inputs, query: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(self.seed)
        if self.fault == "last key dropped":
            key = key[:-1]
        if self.fault == "a page read twice":
            key = key.copy()
            key[len(key) // 2] = key[len(key) // 2 - 1]
        scale = self._scale(inputs.sm_scale)
        states = [self._attend(inputs, query, part, scale, random) for part in np.array_split(key, self.splits)]
        top, total, sums = states[0] if self.splits == 1 else self._merge(states, inputs.q_nope.dtype, random)
        value, log = float32(sums / total), self._log(total, random)
        lse = log if self.fault == "lse without the maximum" else float32(top + log)
        if self.natural:
            lse = float32(lse * float32(LOG2_E))
        if self.fault == "natural lse":
            lse = float32(lse / LOG2_E)
        return value, lse[:, 0]

    def _attend(self, inputs, query, key, scale, random) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Maximum [16, 1], sum of P [16, 1] and sum of P V [16, 512] over some keys."""
        dtype = inputs.q_nope.dtype
        top = np.full((16, 1), -np.inf)
        total, sums = np.zeros((16, 1)), np.zeros((16, CKV_DIM))
        starts = range(0, len(key), self.tile)
        for start in reversed(starts) if self.backwards else starts:
            tile = key[start : start + self.tile]
            score = self._dot(query[:, :CKV_DIM], tile[:, :CKV_DIM].T)
            if self.fault != "rotary part left out":
                score = self._dot(query[:, CKV_DIM:], tile[:, CKV_DIM:].T, score)
            if self.fault == "scores in 16 bits":
                score = narrow(score, dtype)
            if not self.raw_maximum:
                score = float32(score * scale)
            new_top = np.maximum(top, score.max(1, keepdims=True))
            if self.raw_maximum:
                p = self._exp(float32(score * scale - float32(new_top * scale)), random)
                rescale = self._exp(float32(float32(top - new_top) * scale), random)
            else:
                p = self._exp(float32(score - new_top), random)
                rescale = self._exp(float32(top - new_top), random)
            if self.fault != "output not rescaled":
                sums = float32(sums * rescale)
            if self.fault != "denominator not rescaled":
                total = float32(total * rescale)
            summed = narrow(p, dtype) if self.rounded_denominator else p
            total = float32(total + summed.astype(np.float32).sum(1, keepdims=True))
            sums = self._dot(float8(p) if self.fault == "P in 4 bits" else narrow(p, dtype), tile[:, :CKV_DIM], sums)
            if self.fault == "accumulator in 16 bits":
                sums = narrow(sums, dtype)
            top = new_top
        return float32(top * scale) if self.raw_maximum else top, total, sums

    def _merge(self, states, dtype, random) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Splits merged by their lse, as FlashDecoding does: each one's output is a weighted value."""
        states = [state for state in states if np.isfinite(state[0]).all()]
        lses = [float32(top + self._log(total, random)) for top, total, _ in states]
        top = np.maximum.reduce(lses)
        total, sums = np.zeros((16, 1)), np.zeros((16, CKV_DIM))
        for lse, (_, split_total, split_sums) in zip(lses, states, strict=True):
            weight = self._exp(float32(lse - top), random)
            total = float32(total + weight)
            partial = float32(split_sums / split_total)
            if self.rounded_partials:
                partial = narrow(partial, dtype)
            sums = float32(sums + float32(weight * partial))
        return top, total, sums

    def _scale(self, sm_scale: float) -> float:
        scale = float32(np.float64(sm_scale))
        if self.fault == "scale of 576 dimensions":
            scale = float32(576**-0.5)
        if self.fault == "scale 1 % off":
            scale = float32(scale * 1.01)
        return scale if self.natural else float32(scale * float32(LOG2_E))

    def _exp(self, x: np.ndarray, random) -> np.ndarray:
        if self.natural:
            x = float32(x * float32(LOG2_E))
        y = np.exp2(x) * (1 + 0.9 * self.constants.exp2 * UNIT * random.choice([-1.0, 1.0], x.shape))
        y = float32(np.where(x == 0, 1.0, y))
        return np.where(y < 2.0**-126, 0.0, y)

    def _log(self, x: np.ndarray, random) -> np.ndarray:
        y = np.log2(x)
        error = 0.9 * self.constants.log2 * UNIT * random.choice([-1.0, 1.0], x.shape)
        y = float32(y + error * np.maximum(1, np.abs(y)))
        return float32(y / LOG2_E) if self.natural else y

    def _dot(self, a: np.ndarray, b: np.ndarray, accumulator: np.ndarray | None = None) -> np.ndarray:
        """a [m, k] @ b [k, n] + accumulator, instruction by instruction; the last one is padded with zeros."""
        total = np.zeros((len(a), b.shape[1])) if accumulator is None else accumulator
        if self.fraction_bits is None:
            for k in range(a.shape[1]):
                total = float32(total + a[:, k, None] * b[k])
            return total
        step = self.constants.instruction_keys
        for k in range(0, a.shape[1], step):
            products = a[:, k : k + step, None] * b[None, k : k + step]
            exponent = np.maximum(_exponent(products).max(1), _exponent(total))
            unit = np.ldexp(1.0, exponent - self.fraction_bits)
            total = toward_zero((np.trunc(products / unit[:, None]).sum(1) + np.trunc(total / unit)) * unit)
        return total


def _exponent(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, -300, np.frexp(x)[1] - 1)


def float32(x: np.ndarray | float) -> np.ndarray:
    """Rounded to nearest float32, kept as float64."""
    return np.asarray(x, np.float64).astype(np.float32).astype(np.float64)


def toward_zero(x: np.ndarray) -> np.ndarray:
    """Rounded toward zero to float32, kept as float64."""
    y = x.astype(np.float32)
    return np.where(np.abs(y.astype(np.float64)) > np.abs(x), np.nextafter(y, np.float32(0)), y).astype(np.float64)


def narrow(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Float32 numbers rounded to nearest bfloat16 or float16, kept as float64."""
    return torch.from_numpy(x).float().to(dtype).double().numpy()


def float8(x: np.ndarray) -> np.ndarray:
    """Rounded to four significant bits."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.round(mantissa * 16) / 16, exponent)
