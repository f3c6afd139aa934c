"""The golden reference, in float64.

    logit  = sm_scale * (q_nope . ckv_j + q_pe . kpe_j)        for the keys j that the row sees
    output = sum_j softmax(logit)_j * ckv_j
    lse    = log2 sum_j exp(logit_j)

sm_scale is the float32 number nearest to the one given. A row that sees no key has output +0 and lse -inf. A row that
sees a position outside kv_indices, or a page outside the cache, is NaN throughout. Keys that a row does not see never
matter, whatever they hold; for those it does see, IEEE arithmetic decides: 0 * inf is NaN.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kernel.contract import CKV_DIM, NUM_HEADS, Inputs

from .blocks import Block, Group, Span, gaps, groups, row_spans

LOG2_E = math.log2(math.e)


def attention(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Output [total_q, 16, 512] and base-2 lse [total_q, 16], both float64, on the device of the inputs."""
    live, lost = row_spans(inputs)
    output, lse = empty_results(inputs, [*live, *lost])
    for span in lost:
        output[span.row : span.row + span.count] = math.nan
        lse[span.row : span.row + span.count] = math.nan
    for operands in blocks_of(inputs, live):
        result = evaluate(operands, operands.block.of(output))
        operands.block.put(output, result.output)
        operands.block.put(lse, result.lse)
    return output, lse


def blocks_of(inputs: Inputs, spans: list[Span]) -> Iterator["Operands"]:
    """All rows of some spans with the keys that they see, one block after the other."""
    for group in groups(spans, inputs.device):
        keys = Keys(inputs, group)
        for block in group.blocks():
            yield Operands(inputs, block, keys)


class Keys:
    """The keys of a group. They come in parts that keep within the memory budget; where one part holds all of them, it
    is gathered once for all blocks."""

    def __init__(self, inputs: Inputs, group: Group) -> None:
        self._inputs, self._group = inputs, group
        self._pages, self.invalid = pages(inputs, group.slots)  # [G, K]
        self.any_invalid = bool(self.invalid.any())
        places = group.key_parts(group.keys)
        self._whole = self._gathered(places[0]) if len(places) == 1 else None

    def parts(self, count: int) -> Iterator["Part"]:
        """The first `count` keys, in order."""
        for place in self._group.key_parts(count):
            yield self.part(place)

    def part(self, place: slice) -> "Part":
        """The keys at one place."""
        if self._whole is not None:
            return Part(place, self._whole, place)
        return Part(place, self._gathered(place), slice(None))

    def _gathered(self, place: slice) -> "Gathered":
        key = stored_keys(self._inputs, self._pages[:, place])
        return Gathered(key.masked_fill_(self.invalid[:, place, None], 0.0) if self.any_invalid else key)


class Operands:
    """The queries and keys of one block."""

    def __init__(self, inputs: Inputs, block: Block, keys: Keys) -> None:
        self.inputs, self.block, self.keys = inputs, block, keys
        self.query = queries(inputs, block)  # [G, R * 16, 576] as stored
        self.hidden = hidden_keys(block)  # [R, 1, K]

    def parts(self) -> Iterator["Part"]:
        """All keys that the last row sees, in order."""
        return self.keys.parts(self.block.shape[-1])

    @cached_property
    def query_finite(self) -> Tensor:
        """[G, R * 16] bool: the query has neither NaN nor Inf."""
        return self._query_magnitude.amax(-1).isfinite()

    @cached_property
    def all_queries_finite(self) -> bool:
        return bool(self.query_finite.all())

    @cached_property
    def query_size(self) -> Tensor:
        """|q| in float32, 0 in place of NaN and infinities."""
        size = self._query_magnitude
        return size if self.all_queries_finite else size.nan_to_num(0.0, 0.0, 0.0)

    @cached_property
    def lanes(self) -> slice | Tensor:
        """The columns in which any query is not zero, int64 where they are no run: a key's other columns do not enter
        any product."""
        lanes = self._query_magnitude.flatten(0, 1).amax(0).nonzero()[:, 0]
        numbers = lanes.tolist()
        if not numbers:
            return slice(0, 0)
        return slice(numbers[0], numbers[-1] + 1) if numbers[-1] - numbers[0] + 1 == len(numbers) else lanes

    @cached_property
    def _query_magnitude(self) -> Tensor:
        return self.query.float().abs_()


class Gathered:
    """Keys [G, n, 576] as stored, 0 for an invalid page, and what is made of them when it is asked for."""

    def __init__(self, key: Tensor) -> None:
        self.key = key

    @cached_property
    def exact(self) -> Tensor:
        """The keys in float64."""
        return self.key.double()

    @cached_property
    def finite(self) -> Tensor:
        """[G, n] bool: the key has neither NaN nor Inf."""
        return self._magnitude.amax(-1).isfinite()

    @cached_property
    def all_finite(self) -> bool:
        return bool(self.finite.all())

    @cached_property
    def value(self) -> Tensor:
        """[G, n, 512] float64 values, 0 in place of NaN and infinities."""
        value = self.exact[..., :CKV_DIM]
        return value if self.all_finite else value.nan_to_num(0.0, 0.0, 0.0)

    @cached_property
    def value_size(self) -> Tensor:
        """|v|, like `value`."""
        return self.value.abs()

    @cached_property
    def value_square(self) -> Tensor:
        """v^2, like `value`."""
        return self.value.square()

    @cached_property
    def size(self) -> Tensor:
        """|k| in float32, 0 in place of NaN and infinities."""
        return self._magnitude if self.all_finite else self._magnitude.nan_to_num(0.0, 0.0, 0.0)

    @cached_property
    def any_subnormal(self) -> bool:
        """Whether a key holds a number that is subnormal in bfloat16, and so in float32; those of float16 are not."""
        if self.key.dtype != torch.bfloat16:
            return False
        pattern = self.key.view(torch.int16) & 0x7FFF  # 1 .. 0x7F for these; 0 is made the largest
        return int(((pattern - 1) & 0x7FFF).amin()) < 0x7F

    @cached_property
    def _magnitude(self) -> Tensor:
        return self.key.float().abs_()


@dataclass(frozen=True, slots=True)
class Part:
    """Some keys of a block, [G, part, ...]: those `among` the gathered ones, whose conversions blocks share."""

    place: slice  # among the keys of the block
    gathered: Gathered
    among: slice

    @property
    def key(self) -> Tensor:
        return self.gathered.key[:, self.among]

    @property
    def exact(self) -> Tensor:
        return self.gathered.exact[:, self.among]

    @property
    def finite(self) -> Tensor:
        return self.gathered.finite[:, self.among]

    @property
    def value(self) -> Tensor:
        return self.gathered.value[:, self.among]

    @property
    def value_size(self) -> Tensor:
        return self.gathered.value_size[:, self.among]

    @property
    def value_square(self) -> Tensor:
        return self.gathered.value_square[:, self.among]

    @property
    def size(self) -> Tensor:
        return self.gathered.size[:, self.among]


@dataclass(frozen=True, slots=True)
class Attention:
    """One block evaluated; float64."""

    scores: Tensor  # [G, R, 16, K] base-2 logits, -inf where the row does not see the key
    weights: Tensor  # [G, R, 16, K] softmax, 0 where the row does not see the key
    lse: Tensor  # [G, R, 16]
    output: Tensor  # [G, R, 16, 512]


def evaluate(operands: Operands, output: Tensor) -> Attention:
    """Attention of one block of rows; its output is put into `output` [G, R, 16, 512]."""
    scores = scaled_scores(operands).masked_fill_(operands.hidden, -math.inf)
    top = scores.amax(-1, keepdim=True)
    weights = torch.exp2(scores - top)
    total = weights.sum(-1, keepdim=True)
    weights /= total
    lse = (top + torch.log2(total))[..., 0]
    put_weighted_values(operands, weights, output)
    if operands.keys.any_invalid:
        lost = sees_invalid_page(operands)[..., None]
        lse.masked_fill_(lost, math.nan)
        output.masked_fill_(lost[..., None], math.nan)
    return Attention(scores, weights, lse, output)


def empty_results(inputs: Inputs, spans: list[Span]) -> tuple[Tensor, Tensor]:
    """Results in which every row that is in no span is empty: output +0, lse -inf. The other outputs are not set."""
    output = torch.empty(inputs.total_q, NUM_HEADS, CKV_DIM, dtype=torch.float64, device=inputs.device)
    for rows in gaps(spans, inputs.total_q):
        output[rows] = 0.0
    lse = torch.full((inputs.total_q, NUM_HEADS), -math.inf, dtype=torch.float64, device=inputs.device)
    return output, lse


def base2_scale(inputs: Inputs) -> float:
    """sm_scale rounded to float32, times log2(e): what turns q . k into a base-2 logit."""
    return torch.tensor(inputs.sm_scale, dtype=torch.float32).item() * LOG2_E


def hidden_keys(block: Block) -> Tensor:
    """[R, 1, K] bool: the row does not see the key."""
    return torch.arange(block.shape[-1], device=block.visible.device) >= block.visible[:, None, None]


def queries(inputs: Inputs, block: Block) -> Tensor:
    """[G, R * 16, 576] as stored: q_nope and q_pe side by side; heads are rows, as all heads share the keys."""
    both = torch.cat([inputs.q_nope[block.place], inputs.q_pe[block.place]], dim=-1)
    return both.view(block.shape[0], -1, both.shape[-1])


def stored_keys(inputs: Inputs, page: Tensor) -> Tensor:
    """[G, part, 576] as stored: ckv and kpe side by side; 512 columns are the value."""
    return torch.cat([inputs.ckv_cache[page, 0], inputs.kpe_cache[page, 0]], dim=-1)


def pages(inputs: Inputs, slots: Tensor) -> tuple[Tensor, Tensor]:
    """The page at each position of kv_indices, brought into the cache, and whether it was outside; like `slots`."""
    page = inputs.kv_indices[slots].long()
    return page.clamp(0, inputs.num_pages - 1), (page < 0) | (page >= inputs.num_pages)


def scaled_scores(operands: Operands) -> Tensor:
    """[G, R, 16, K] float64 base-2 logits of the keys that each row sees; those of other keys may be anything."""
    query, shape = operands.query, operands.block.shape
    scores = torch.empty(shape, dtype=torch.float64, device=query.device)
    flat = scores.view(shape[0], -1, shape[-1])
    for heads, keys in operands.block.pieces():
        some = query[:, heads].double()
        for part in operands.keys.parts(keys):
            flat[:, heads, part.place] = some @ part.exact.mT
    return scores.mul_(base2_scale(operands.inputs))


def joined(parts: list[Tensor]) -> Tensor:
    """What was computed for each part of the keys, side by side."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def put_weighted_values(operands: Operands, weights: Tensor, output: Tensor) -> None:
    """Into `output` [G, R, 16, 512] the sum of weight * value over the keys that each row sees."""
    flat, total = weights.flatten(1, 2), output.view(output.shape[0], -1, CKV_DIM)
    for heads, keys in operands.block.pieces():
        total[:, heads] = value_sum(operands, flat[:, heads], keys, lambda part: part.value)
    for part in operands.parts():
        if not part.gathered.all_finite:
            seen = (~operands.hidden[..., part.place]).expand(weights[..., part.place].shape).flatten(1, 2)
            total += non_finite_values(flat[..., part.place], seen, part.exact[..., :CKV_DIM])


def value_sum(operands: Operands, weight: Tensor, keys: int, of: Callable[[Part], Tensor]) -> Tensor:
    """[G, M, 512]: the sum over the first `keys` keys of weight [G, M, K] * of(part)."""
    total: Tensor | None = None
    for part in operands.keys.parts(keys):
        products = weight[..., part.place] @ of(part)
        total = products if total is None else total.add_(products)
    assert total is not None  # a row sees a key
    return total


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
    return (operands.keys.invalid.cumsum(-1) > 0)[:, operands.block.visible - 1]
