"""Which rows see which keys, and which rows are computed together.

Everything here follows from the two row pointers and the sizes of the tensors. Request b owns query rows
qo_indptr[b] .. qo_indptr[b + 1] and key positions kv_indptr[b] .. kv_indptr[b + 1]; its row i sees the first
kv_len - q_len + i + 1 of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernel.contract import CKV_DIM, KPE_DIM, NUM_HEADS, Inputs

# Memory budget: at most this many elements in any one temporary (32 MiB in float64), save that one row's scores
# against all its keys are never split (131,072 keys are 16 MiB). A reference holds about ten such temporaries, both
# forms of the bound twenty.
ELEMENTS = 2**22
# Output elements of a block that are computed at a time on a CPU.
CPU_CHUNK = 2**16

KEY_DIM = CKV_DIM + KPE_DIM


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one request; the first of them sees `visible` keys, each later one sees one key more."""

    row: int
    count: int
    visible: int
    slot: int  # the request's first position in kv_indices


@dataclass(frozen=True, slots=True)
class Block:
    """Rows computed together: R consecutive rows of each of G requests, alike in how many keys each row sees."""

    place: slice | Tensor  # the query rows as an index: of one request's, of several [G, R] int64
    visible: Tensor  # [R] int64 >= 1, number of keys that a row sees
    shape: tuple[int, int, int, int]  # [G, R, 16, K] of the block's scores; K keys are what the last row sees

    @property
    def rows(self) -> Tensor:
        """[G, R] int64, query rows."""
        if isinstance(self.place, Tensor):
            return self.place
        return torch.arange(self.place.start, self.place.stop, device=self.visible.device)[None]

    def pieces(self) -> Iterator[tuple[slice, int]]:
        """Some of the R * 16 rows and heads, and how many keys the last row among them sees. On a CPU these are a few,
        so that a core keeps what it computes of them in its cache and leaves out keys that none of them sees."""
        requests, rows, heads, keys = self.shape
        step = rows * heads
        if self.visible.device.type == "cpu":
            step = min(step, max(1, CPU_CHUNK // (requests * CKV_DIM)))
        for start in range(0, rows * heads, step):
            stop = min(start + step, rows * heads)
            yield slice(start, stop), keys - rows + 1 + (stop - 1) // heads

    def of(self, results: Tensor) -> Tensor:
        """[G, R, ...] where to put what the rows have in `results` [total_q, ...]: a view, if they are one request's,
        else memory of its own."""
        if isinstance(self.place, slice):
            return results[self.place][None]
        return results.new_empty(*self.shape[:2], *results.shape[1:])

    def put(self, results: Tensor, of_rows: Tensor | bool) -> None:
        """Put there what the rows have, [G, R, ...], if it is not there already."""
        if not (isinstance(self.place, slice) and isinstance(of_rows, Tensor) and _share_memory(results, of_rows)):
            results[self.place] = of_rows


@dataclass(frozen=True, slots=True)
class Group:
    """G requests with rows that are alike in how many keys each sees, so that their keys are gathered once."""

    spans: list[Span]
    device: torch.device

    @property
    def keys(self) -> int:
        """How many keys the last row sees."""
        return self.spans[0].visible + self.spans[0].count - 1

    @property
    def slots(self) -> Tensor:
        """[G, K] int64, positions in kv_indices of the keys that the last row sees."""
        first = torch.tensor([[span.slot] for span in self.spans], device=self.device)
        return first + torch.arange(self.keys, device=self.device)

    def key_parts(self, keys: int) -> list[slice]:
        """The first `keys` keys in pieces that keep the gathered keys, [G, part, 576], within the memory budget."""
        step = max(1, ELEMENTS // (len(self.spans) * KEY_DIM))
        return [slice(start, min(start + step, keys)) for start in range(0, keys, step)]

    def blocks(self) -> Iterator[Block]:
        """The rows, cut into blocks within the memory budget."""
        first = self.spans[0]
        step = _rows_per_block(first.count, self.keys, ELEMENTS // len(self.spans))
        row = torch.tensor([[span.row] for span in self.spans], device=self.device)
        for start in range(0, first.count, step):
            end = min(start + step, first.count)
            offset = torch.arange(start, end, device=self.device)
            alone = len(self.spans) == 1
            place = slice(first.row + start, first.row + end) if alone else row + offset
            shape = len(self.spans), end - start, NUM_HEADS, first.visible + end - 1
            yield Block(place, first.visible + offset, shape)


def row_spans(inputs: Inputs) -> tuple[list[Span], list[Span]]:
    """The rows that see a key, as (live, lost); all other rows are empty. Copies the row pointers to the CPU.

    Lost rows see a key position outside kv_indices: they are NaN. Rows are never counted twice and never lie outside
    the tensors, whatever the row pointers hold.
    """
    qo_indptr, kv_indptr = inputs.qo_indptr.tolist(), inputs.kv_indptr.tolist()
    num_slots = inputs.num_kv_indices if inputs.num_pages else 0
    live, lost = [], []
    free = 0  # rows before this one belong to an earlier request
    for request in range(inputs.batch):
        row, row_end = qo_indptr[request], qo_indptr[request + 1]
        slot, slot_end = kv_indptr[request], kv_indptr[request + 1]
        prefix = (slot_end - slot) - (row_end - row)  # row i sees prefix + i + 1 keys
        begin, end = max(row, free, 0), min(row_end, inputs.total_q)
        free = max(free, end)
        if slot_end <= slot:
            continue
        begin = max(begin, row - prefix)
        in_bounds = max(0, num_slots - slot) if slot >= 0 else 0
        first_lost = min(max(row - prefix + in_bounds, begin), end)
        if begin < first_lost:
            live.append(Span(begin, first_lost - begin, prefix + begin - row + 1, slot))
        if first_lost < end:
            lost.append(Span(first_lost, end - first_lost, prefix + first_lost - row + 1, slot))
    return live, lost


def gaps(spans: list[Span], rows: int) -> Iterator[slice]:
    """The rows, of so many, that are in no span."""
    end = 0
    for span in sorted(spans, key=lambda span: span.row):
        if end < span.row:
            yield slice(end, span.row)
        end = span.row + span.count
    if end < rows:
        yield slice(end, rows)


def groups(spans: list[Span], device: torch.device) -> Iterator[Group]:
    """Spans of equal lengths together, however many, as far as the memory budget goes."""
    alike: dict[tuple[int, int], list[Span]] = {}
    for span in spans:
        alike.setdefault((span.count, span.visible), []).append(span)
    for (count, visible), members in alike.items():
        keys = visible + count - 1
        rows = _rows_per_block(count, keys, ELEMENTS)
        size = max(1, ELEMENTS // max(rows * NUM_HEADS * max(keys, KEY_DIM), keys * KEY_DIM))
        for start in range(0, len(members), size):
            yield Group(members[start : start + size], device)


def _share_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _rows_per_block(count: int, keys: int, elements: int) -> int:
    return max(1, min(count, elements // (NUM_HEADS * max(keys, KEY_DIM))))
