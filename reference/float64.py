"""The golden reference, in float64.

    logit  = sm_scale * (q_nope . ckv_j + q_pe . kpe_j)        for the keys j that the row sees
    output = sum_j softmax(logit)_j * ckv_j
    lse    = log2 sum_j exp(logit_j)

sm_scale is the float32 number nearest to the one given. A row that sees no key has output +0 and lse -inf. A row that
sees a position outside kv_indices, or a page outside the cache, is NaN throughout. Keys that a row does not see never
matter, whatever they hold; for those it does see, IEEE arithmetic decides: 0 * inf is NaN.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kernel.contract import CKV_DIM, NUM_HEADS, Inputs

from .blocks import Block, blocks, row_spans

LOG2_E = math.log2(math.e)


def attention(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Output [total_q, 16, 512] and base-2 lse [total_q, 16], both float64, on the device of the inputs."""
    output, lse = empty_results(inputs)
    live, lost = row_spans(inputs)
    for span in lost:
        output[span.row : span.row + span.count] = math.nan
        lse[span.row : span.row + span.count] = math.nan
    for block in blocks(live, inputs.device):
        result = evaluate(Operands(inputs, block))
        output[block.rows], lse[block.rows] = result.output, result.lse
    return output, lse


class Operands:
    """The queries and keys of one block. Keys come in parts that keep within the memory budget; where one part holds
    all of them, it is gathered once."""

    def __init__(self, inputs: Inputs, block: Block) -> None:
        self.inputs, self.block = inputs, block
        self.query = queries(inputs, block)  # [G, R * 16, 576] as stored
        self.pages, self.invalid = pages(inputs, block.slots)  # [G, K]
        self.hidden = hidden_keys(block)  # [R, 1, K]
        self._places = list(block.key_parts())
        self._only: Part | None = None

    def parts(self) -> Iterator["Part"]:
        """All keys, in order."""
        if len(self._places) > 1:
            yield from map(self.part, self._places)
            return
        self._only = self._only or self.part(self._places[0])
        yield self._only

    def part(self, place: slice) -> "Part":
        """The keys at one place."""
        return Part(place, keys(self.inputs, self.pages[:, place], self.invalid[:, place]))

    @cached_property
    def query_finite(self) -> Tensor:
        """[G, R * 16] bool: the query has neither NaN nor Inf."""
        return largest(self._query_magnitude).isfinite()

    @cached_property
    def query_size(self) -> Tensor:
        """|q| in float32, 0 in place of NaN and infinities."""
        return self._query_magnitude.nan_to_num(0.0, 0.0, 0.0)

    @cached_property
    def lanes(self) -> Tensor:
        """The columns in which any query is not zero, int64: a key's other columns do not enter any product."""
        return self._query_magnitude.flatten(0, 1).amax(0).nonzero()[:, 0]

    @cached_property
    def _query_magnitude(self) -> Tensor:
        return self.query.float().abs_()


@dataclass(frozen=True)
class Part:
    """Some keys of a block."""

    place: slice  # among the keys of the block
    key: Tensor  # [G, part, 576] as stored, 0 for an invalid page

    @cached_property
    def exact(self) -> Tensor:
        """The keys in float64."""
        return self.key.double()

    @cached_property
    def finite(self) -> Tensor:
        """[G, part] bool: the key has neither NaN nor Inf."""
        return largest(self._magnitude).isfinite()

    @cached_property
    def all_finite(self) -> bool:
        return bool(self.finite.all())

    @cached_property
    def value(self) -> Tensor:
        """[G, part, 512] float64 values, 0 in place of NaN and infinities."""
        value = self.exact[..., :CKV_DIM]
        return value if self.all_finite else value.nan_to_num(0.0, 0.0, 0.0)

    @cached_property
    def size(self) -> Tensor:
        """|k| in float32, 0 in place of NaN and infinities."""
        return self._magnitude if self.all_finite else self._magnitude.nan_to_num(0.0, 0.0, 0.0)

    @cached_property
    def _magnitude(self) -> Tensor:
        return self.key.float().abs_()


@dataclass(frozen=True, slots=True)
class Attention:
    """One block evaluated; float64."""

    scores: Tensor  # [G, R, 16, K] base-2 logits, -inf where the row does not see the key
    weights: Tensor  # [G, R, 16, K] softmax, 0 where the row does not see the key
    lse: Tensor  # [G, R, 16]
    output: Tensor  # [G, R, 16, 512]


def evaluate(operands: Operands) -> Attention:
    """Attention of one block of rows."""
    scores = scaled_scores(operands).masked_fill_(operands.hidden, -math.inf)
    top = scores.amax(-1, keepdim=True)
    weights = torch.exp2(scores - top)
    total = weights.sum(-1, keepdim=True)
    weights /= total
    lse = (top + torch.log2(total))[..., 0]
    output = weighted_values(operands, weights)

    lost = sees_invalid_page(operands)[..., None]
    return Attention(scores, weights, lse.masked_fill_(lost, math.nan), output.masked_fill_(lost[..., None], math.nan))


def empty_results(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Results in which every row is empty: output +0, lse -inf."""
    output = torch.zeros(inputs.total_q, NUM_HEADS, CKV_DIM, dtype=torch.float64, device=inputs.device)
    lse = torch.full((inputs.total_q, NUM_HEADS), -math.inf, dtype=torch.float64, device=inputs.device)
    return output, lse


def base2_scale(inputs: Inputs) -> float:
    """sm_scale rounded to float32, times log2(e): what turns q . k into a base-2 logit."""
    return torch.tensor(inputs.sm_scale, dtype=torch.float32).item() * LOG2_E


def hidden_keys(block: Block) -> Tensor:
    """[R, 1, K] bool: the row does not see the key."""
    return torch.arange(block.slots.shape[1], device=block.slots.device) >= block.visible[:, None, None]


def queries(inputs: Inputs, block: Block) -> Tensor:
    """[G, R * 16, 576] as stored: q_nope and q_pe side by side; heads are rows, as all heads share the keys."""
    return torch.cat([inputs.q_nope[block.rows], inputs.q_pe[block.rows]], dim=-1).flatten(1, 2)


def keys(inputs: Inputs, page: Tensor, invalid: Tensor) -> Tensor:
    """[G, part, 576] as stored: ckv and kpe side by side; 512 columns are the value. 0 for an invalid page."""
    key = torch.cat([inputs.ckv_cache[page, 0], inputs.kpe_cache[page, 0]], dim=-1)
    return key.masked_fill_(invalid[..., None], 0.0)


def pages(inputs: Inputs, slots: Tensor) -> tuple[Tensor, Tensor]:
    """The page at each position of kv_indices, brought into the cache, and whether it was outside; like `slots`."""
    page = inputs.kv_indices[slots].long()
    return page.clamp(0, inputs.num_pages - 1), (page < 0) | (page >= inputs.num_pages)


def scaled_scores(operands: Operands) -> Tensor:
    """[G, R, 16, K] float64 base-2 logits of every key of the block, seen or not."""
    query, scale, shape = operands.query.double(), base2_scale(operands.inputs), operands.block.shape
    scores = torch.empty(shape, dtype=torch.float64, device=query.device)
    for part in operands.parts():
        product = query @ part.exact.mT
        scores[..., part.place] = product.mul_(scale).unflatten(1, shape[1:3])
    return scores


def weighted_values(operands: Operands, weights: Tensor) -> Tensor:
    """[G, R, 16, 512] sum of weight * value over the keys that each row sees."""
    requests, rows, heads, _ = operands.block.shape
    output = torch.zeros(requests, rows * heads, CKV_DIM, dtype=torch.float64, device=weights.device)
    for part in operands.parts():
        weight = weights[..., part.place].flatten(1, 2)
        output.baddbmm_(weight, part.value)
        if not part.all_finite:
            seen = (~operands.hidden[..., part.place]).expand(weights[..., part.place].shape).flatten(1, 2)
            output += non_finite_values(weight, seen, part.exact[..., :CKV_DIM])
    return output.view(requests, rows, heads, CKV_DIM)


def largest(values: Tensor) -> Tensor:
    """[...] largest absolute value of the last dimension; NaN or infinite if and only if some element is."""
    return values.abs().amax(-1)


def non_finite_values(weight: Tensor, seen: Tensor, value: Tensor) -> Tensor:
    """What the infinities and NaNs among the values that a row sees add to its sum; 0 where there are none.

    weight, seen [G, rows, K]; value [G, K, columns]; result [G, rows, columns]. A product of indicators counts the
    terms of each kind, so that an unseen key's 0 * inf cannot reach the row.
    """

    def occurs(selected: Tensor, kind: Tensor) -> Tensor:
        return selected.double() @ kind.double() > 0

    up, down = occurs(seen & (weight > 0), value.isposinf()), occurs(seen & (weight > 0), value.isneginf())
    nan = occurs(seen, value.isnan()) | occurs(seen & (weight == 0), value.isinf()) | (up & down)
    added = torch.zeros(nan.shape, dtype=torch.float64, device=nan.device)
    return added.masked_fill_(up, math.inf).masked_fill_(down, -math.inf).masked_fill_(nan, math.nan)


def sees_invalid_page(operands: Operands) -> Tensor:
    """[G, R] bool: some key that the row sees names a page outside the cache."""
    return (operands.invalid.cumsum(-1) > 0)[:, operands.block.visible - 1]
