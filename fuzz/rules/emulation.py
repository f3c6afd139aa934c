"""An ideal tile kernel in torch, one method per step, and faults: subclasses that get one step wrong.

Ideal means: 16-bit operands, float32 sums and softmax, P rounded once to nearest 16 bits for its product with V, the
result rounded once. What a GPU adds (tensor cores that truncate, approximate exp2) is in tests/emulation.py. The faults
are those that public bug reports tell of, with their classes F01 to F30 (docs/mutants.md).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kernel.contract import CKV_DIM, NUM_HEADS, Inputs

LOG2_E = math.log2(math.e)


class Kernel:
    """A correct kernel. Called with the eight operands and the two result buffers, by name."""

    name = "correct"
    tile = 64  # keys

    def __call__(self, *, output: Tensor, lse: Tensor, **operands: Any) -> None:
        inputs = Inputs(**operands)
        for request in range(inputs.batch):
            rows = slice(*inputs.qo_indptr[request : request + 2].tolist())
            first, last = inputs.kv_indptr[request : request + 2].tolist()
            if rows.start < rows.stop:
                value, value_lse = self.request(inputs, rows, first, last)
                self.write(output[rows], lse[rows], value, value_lse)
        padding = slice(int(inputs.qo_indptr[-1]), None)
        output[padding], lse[padding] = 0.0, -math.inf
        self.finish(output, lse)

    def request(self, inputs: Inputs, rows: slice, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Output [q, 16, 512] and lse [q, 16] of one request."""
        q_nope, q_pe = (q[rows].flatten(0, 1) for q in (inputs.q_nope, inputs.q_pe))
        count = rows.stop - rows.start
        sees = self.visible(count, last - first).clamp(0, last - first).repeat_interleave(NUM_HEADS)[:, None]
        pages = self.pages(inputs, first, last)
        m, total, acc = self.start(len(sees))
        for start in self.tiles(int(sees.max())):
            tile = pages[start : start + self.tile]
            k, kp = inputs.ckv_cache[tile, 0], inputs.kpe_cache[tile, 0]
            x = self.scores(q_nope, q_pe, k, kp, self.scale(inputs.sm_scale))
            x = self.mask(x, start + torch.arange(len(tile)) < sees)
            m, total, acc = self.step(m, total, acc, x, k)
        value, value_lse = self.epilogue(m, total, acc)
        value = self.store(value, inputs.q_nope.dtype)
        return value.view(count, NUM_HEADS, CKV_DIM), value_lse.view(count, NUM_HEADS)

    def visible(self, q_len: int, kv_len: int) -> Tensor:
        return kv_len - q_len + 1 + torch.arange(q_len)

    def pages(self, inputs: Inputs, first: int, last: int) -> Tensor:
        return inputs.kv_indices[first:last].long()

    def start(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        return torch.full((rows, 1), -math.inf), torch.zeros(rows, 1), torch.zeros(rows, CKV_DIM)

    def tiles(self, most: int) -> range:
        return range(0, most, self.tile)

    def scale(self, sm_scale: float) -> float:
        return sm_scale * LOG2_E

    def scores(self, q_nope: Tensor, q_pe: Tensor, k: Tensor, kp: Tensor, scale: float) -> Tensor:
        return (q_nope.float() @ k.float().mT + q_pe.float() @ kp.float().mT) * scale

    def mask(self, x: Tensor, seen: Tensor) -> Tensor:
        return x.masked_fill(~seen, -math.inf)

    def step(self, m: Tensor, total: Tensor, acc: Tensor, x: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step of the online softmax."""
        m_new = torch.maximum(m, x.amax(1, keepdim=True))
        shift = torch.where(m_new.isneginf(), 0.0, m_new)
        p, alpha = torch.exp2(x - shift), torch.exp2(m - shift)
        # keys that no row sees are never loaded
        v = torch.where((p > 0).any(0)[:, None], k.float(), 0.0)
        total = self.rescale_sum(total, alpha) + p.sum(1, keepdim=True)
        acc = self.keep(self.rescale_output(acc, alpha) + self.weights(p, k.dtype) @ v)
        return m_new, total, acc

    def rescale_sum(self, total: Tensor, alpha: Tensor) -> Tensor:
        return total * alpha

    def rescale_output(self, acc: Tensor, alpha: Tensor) -> Tensor:
        return acc * alpha

    def weights(self, p: Tensor, dtype: torch.dtype) -> Tensor:
        return p.to(dtype).float()

    def keep(self, acc: Tensor) -> Tensor:
        return acc

    def epilogue(self, m: Tensor, total: Tensor, acc: Tensor) -> tuple[Tensor, Tensor]:
        return torch.where(total == 0, 0.0, acc / total), self.lse(m, total)

    def lse(self, m: Tensor, total: Tensor) -> Tensor:
        return torch.where(total == 0, -math.inf, m + total.log2())

    def store(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        return value.to(dtype)

    def write(self, output: Tensor, lse: Tensor, value: Tensor, value_lse: Tensor) -> None:
        output.copy_(value)
        lse.copy_(value_lse)

    def finish(self, output: Tensor, lse: Tensor) -> None:
        """After all requests: nothing."""


# --- correct kernels: what they do otherwise, others do too ---


class SmallTiles(Kernel):
    name = "correct, tiles of 16 keys"
    tile = 16


class Backwards(Kernel):
    name = "correct, last keys first"

    def tiles(self, most: int) -> range:
        return super().tiles(most)[::-1]


class ScaledApart(Kernel):
    name = "correct, two products scaled apart"

    def scores(self, q_nope: Tensor, q_pe: Tensor, k: Tensor, kp: Tensor, scale: float) -> Tensor:
        return (q_nope.float() @ k.float().mT) * scale + (q_pe.float() @ kp.float().mT) * scale


CORRECT = (Kernel, SmallTiles, Backwards, ScaledApart)


# --- faults: which keys ---


class LastKeyDropped(Kernel):
    """F07: rows that see all keys miss the last one."""

    name = "last key dropped"

    def visible(self, q_len: int, kv_len: int) -> Tensor:
        return super().visible(q_len, kv_len).clamp(max=kv_len - 1)


class CausalEdgeEarly(Kernel):
    """F05: `<` in place of `<=` on the diagonal."""

    name = "causal edge one early"

    def visible(self, q_len: int, kv_len: int) -> Tensor:
        return super().visible(q_len, kv_len) - 1


class CausalEdgeLate(Kernel):
    """F05, the other way."""

    name = "causal edge one late"

    def visible(self, q_len: int, kv_len: int) -> Tensor:
        return super().visible(q_len, kv_len) + 1


class TopLeftMask(Kernel):
    """F06: the prefix left out."""

    name = "mask from the top left"

    def visible(self, q_len: int, kv_len: int) -> Tensor:
        return 1 + torch.arange(q_len)


class PartialTileDropped(Kernel):
    """F07: the number of tiles rounded down."""

    name = "last partial tile dropped"

    def tiles(self, most: int) -> range:
        return range(0, most // self.tile * self.tile, self.tile)


class PageReadTwice(Kernel):
    """F13: one position reads its neighbour's page."""

    name = "a page read twice"

    def pages(self, inputs: Inputs, first: int, last: int) -> Tensor:
        pages = super().pages(inputs, first, last).clone()
        if len(pages) > 1:
            pages[len(pages) // 2] = pages[len(pages) // 2 - 1]
        return pages


class PageTableIgnored(Kernel):
    """F13: the position taken for the page."""

    name = "page table ignored"

    def pages(self, inputs: Inputs, first: int, last: int) -> Tensor:
        return torch.arange(first, last)


class KeysOfFirstRequest(Kernel):
    """F12: every request reads from the start of kv_indices."""

    name = "keys of the first request"

    def pages(self, inputs: Inputs, first: int, last: int) -> Tensor:
        return super().pages(inputs, 0, last - first)


# --- faults: scores and mask ---


class ScaleOff(Kernel):
    name = "scale 1 % off"

    def scale(self, sm_scale: float) -> float:
        return super().scale(sm_scale) * 1.01


class ScaleHardCoded(Kernel):
    """F19: 1/sqrt(576), the width of the stored key, whatever is asked for."""

    name = "scale of 576 dimensions"

    def scale(self, sm_scale: float) -> float:
        return LOG2_E / math.sqrt(576)


class RotaryPartLeftOut(Kernel):
    """F20."""

    name = "rotary part left out"

    def scores(self, q_nope: Tensor, q_pe: Tensor, k: Tensor, kp: Tensor, scale: float) -> Tensor:
        return (q_nope.float() @ k.float().mT) * scale


class ScoresIn16Bits(Kernel):
    """F22."""

    name = "scores in 16 bits"

    def scores(self, q_nope: Tensor, q_pe: Tensor, k: Tensor, kp: Tensor, scale: float) -> Tensor:
        return super().scores(q_nope, q_pe, k, kp, scale).to(k.dtype).float()


class QueryScaledIn16Bits(Kernel):
    """F19: the scale multiplied into Q and rounded."""

    name = "query scaled in 16 bits"

    def scores(self, q_nope: Tensor, q_pe: Tensor, k: Tensor, kp: Tensor, scale: float) -> Tensor:
        return super().scores((q_nope * scale), (q_pe * scale), k, kp, 1.0)


class FiniteSentinel(Kernel):
    """F14: hidden keys get -1e4, and the maximum starts there."""

    name = "finite mask value -1e4"

    def start(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        m, total, acc = super().start(rows)
        return m.fill_(-1e4), total, acc

    def mask(self, x: Tensor, seen: Tensor) -> Tensor:
        return x.masked_fill(~seen, -1e4)


class PaddingCounted(Kernel):
    """F08: lanes of the last tile past the last key count with score 0 and value 0."""

    name = "padding lanes in the denominator"

    def step(self, m: Tensor, total: Tensor, acc: Tensor, x: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        m, total, acc = super().step(m, total, acc, x, k)
        return m, total + (self.tile - len(k)) * torch.exp2(-m), acc


# --- faults: softmax ---


class NoMaximum(Kernel):
    """F15."""

    name = "maximum not subtracted"

    def step(self, m: Tensor, total: Tensor, acc: Tensor, x: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        p = torch.exp2(x)
        return torch.zeros_like(m), total + p.sum(1, keepdim=True), acc + self.weights(p, k.dtype) @ k.float()


class OutputNotRescaled(Kernel):
    """F16."""

    name = "output not rescaled"

    def rescale_output(self, acc: Tensor, alpha: Tensor) -> Tensor:
        return acc


class SumNotRescaled(Kernel):
    """F16."""

    name = "denominator not rescaled"

    def rescale_sum(self, total: Tensor, alpha: Tensor) -> Tensor:
        return total


class SumFromRoundedP(Kernel):
    """F22: the denominator kept in 16 bits."""

    name = "denominator in 16 bits"

    def rescale_sum(self, total: Tensor, alpha: Tensor) -> Tensor:
        return (total * alpha).bfloat16().float()


class AccumulatorIn16Bits(Kernel):
    """F22."""

    name = "accumulator in 16 bits"

    def keep(self, acc: Tensor) -> Tensor:
        return acc.bfloat16().float()


class PIn4Bits(Kernel):
    """F22: P as float8 e4m3 keeps it."""

    name = "P in float8"

    def weights(self, p: Tensor, dtype: torch.dtype) -> Tensor:
        return p.to(torch.float8_e4m3fn).float()


class PTruncated(Kernel):
    """F22: P cut to 16 bits, not rounded."""

    name = "P truncated"

    def weights(self, p: Tensor, dtype: torch.dtype) -> Tensor:
        return truncated(p, dtype).float()


# --- faults: results ---


class OutputTruncated(Kernel):
    """F22: the store cuts the result to 16 bits."""

    name = "output truncated"

    def store(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        return truncated(value, dtype)


class OutputNotDivided(Kernel):
    name = "output not divided"

    def epilogue(self, m: Tensor, total: Tensor, acc: Tensor) -> tuple[Tensor, Tensor]:
        return acc, self.lse(m, total)


class NaturalLse(Kernel):
    """F17."""

    name = "natural lse"

    def lse(self, m: Tensor, total: Tensor) -> Tensor:
        return super().lse(m, total) / LOG2_E


class LseWithoutMaximum(Kernel):
    """F17."""

    name = "lse without the maximum"

    def lse(self, m: Tensor, total: Tensor) -> Tensor:
        return total.log2()


class LseIn16Bits(Kernel):
    """F17, F22."""

    name = "lse in 16 bits"

    def lse(self, m: Tensor, total: Tensor) -> Tensor:
        return super().lse(m, total).bfloat16().float()


class LseTransposed(Kernel):
    """F18: written as [heads, rows] into the same memory."""

    name = "lse transposed"

    def finish(self, output: Tensor, lse: Tensor) -> None:
        lse.copy_(lse.mT.reshape(lse.shape))


class HeadsSwapped(Kernel):
    """F18: two heads' outputs in each other's place."""

    name = "two heads swapped"

    def write(self, output: Tensor, lse: Tensor, value: Tensor, value_lse: Tensor) -> None:
        super().write(output, lse, value[:, [1, 0, *range(2, NUM_HEADS)]], value_lse)


class EmptyRowsFinite(Kernel):
    """F10, F14: a row that sees no key gets a finite LSE."""

    name = "empty rows with a finite lse"

    def lse(self, m: Tensor, total: Tensor) -> Tensor:
        return torch.where(total == 0, -5e4, m + total.log2())


class EmptyRowsPlusInf(Kernel):
    """F09: the sign of log(0)."""

    name = "empty rows with lse +inf"

    def lse(self, m: Tensor, total: Tensor) -> Tensor:
        return torch.where(total == 0, math.inf, m + total.log2())


class EmptyRowsNaN(Kernel):
    """F09, F10: 0 / 0."""

    name = "empty rows 0/0"

    def epilogue(self, m: Tensor, total: Tensor, acc: Tensor) -> tuple[Tensor, Tensor]:
        return acc / total, self.lse(m, total)


class EmptyRowsSkipped(Kernel):
    """F09, F10: nothing written."""

    name = "empty rows not written"

    def write(self, output: Tensor, lse: Tensor, value: Tensor, value_lse: Tensor) -> None:
        seeing = ~value_lse[:, 0].isneginf()
        output[seeing], lse[seeing] = value[seeing], value_lse[seeing]


class LastRowSkipped(Kernel):
    """F11, F27: the last row of a request not written."""

    name = "last row not written"

    def write(self, output: Tensor, lse: Tensor, value: Tensor, value_lse: Tensor) -> None:
        super().write(output[:-1], lse[:-1], value[:-1], value_lse[:-1])


class OneNaN(Kernel):
    name = "one NaN in the output"

    def finish(self, output: Tensor, lse: Tensor) -> None:
        output[0, 3, 200] = math.nan


class OneWrongElement(Kernel):
    name = "one element with the wrong sign"

    def finish(self, output: Tensor, lse: Tensor) -> None:
        row = output[0, 3]
        row[row.abs().argmax()] *= -1


FAULTS = (
    LastKeyDropped, CausalEdgeEarly, CausalEdgeLate, TopLeftMask, PartialTileDropped, PageReadTwice,
    PageTableIgnored, KeysOfFirstRequest, ScaleOff, ScaleHardCoded, RotaryPartLeftOut, ScoresIn16Bits,
    QueryScaledIn16Bits, FiniteSentinel, PaddingCounted, NoMaximum, OutputNotRescaled, SumNotRescaled,
    SumFromRoundedP, AccumulatorIn16Bits, PIn4Bits, PTruncated, OutputTruncated, OutputNotDivided, NaturalLse,
    LseWithoutMaximum, LseIn16Bits, LseTransposed, HeadsSwapped, EmptyRowsFinite, EmptyRowsPlusInf, EmptyRowsNaN,
    EmptyRowsSkipped, LastRowSkipped, OneNaN, OneWrongElement,
)  # fmt: skip


def truncated(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 numbers rounded toward zero to bfloat16 or float16."""
    rounded = x.to(dtype)
    too_far = rounded.float().abs() > x.abs()
    bits = rounded.view(torch.int16)
    return torch.where(too_far, bits - 1, bits).view(dtype)
