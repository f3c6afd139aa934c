"""Batches of few requests: programs find their work in the row pointers, all of which they look at together.

That is what `schedule` would list (schedule.py), without a launch for it and a list to wait for. Each thread of a warp
holds a request, and the next one the padding. Under Gluon the same functions run in the kernel for Hopper.
"""

import triton
import triton.language as tl

from .lookup import existing_keys
from .schedule import requested_work

# Row pointers that a warp holds: of 31 requests.
LANES = tl.constexpr(32)
MOST_REQUESTS = LANES.value - 1
# Classes of items by their keys; the last one has up to 2^30.
_LAST_CLASS = tl.constexpr(96)


@triton.jit
def row_pointers(qo, kv, lane, batch):
    """Of request number `lane` the entries of both row pointers, and the next ones; past `batch` the padding's."""
    at = tl.minimum(lane, batch)
    after = tl.minimum(lane + 1, batch)
    return (
        tl.load(qo[0] + at * qo[1]), tl.load(qo[0] + after * qo[1]),
        tl.load(kv[0] + at * kv[1]), tl.load(kv[0] + after * kv[1]),
    )  # fmt: skip


@triton.jit
def look(
    pointers, lane, batch, total_q, num_kv_indices,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Of `row_pointers`, what there is to do for request number `lane`, see `work_of`; LANES numbers, of which those
    past `batch` are none. No rows at all where query pointers are not in order; no chunks where key pointers are not.
    """
    q_start, q_end, wrong, kv_start, kv_end = _extents(pointers, lane, batch, total_q)
    in_order = tl.sum(wrong.to(tl.int32), 0) == 0
    splits = tl.sum((kv_end < kv_start).to(tl.int32), 0) == 0
    q_len = tl.where(in_order & (lane <= batch), q_end - q_start, 0)
    return work_of(q_start, q_len, kv_start, kv_end, splits, num_kv_indices, QUERIES, CHUNK, SHORT, MANY)


@triton.jit
def look_at_one(
    pointers, total_q, num_kv_indices,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """As `look`, of the only request, in scalars; and how many rows the padding has."""
    q_start, q_end, kv_start, kv_end = pointers
    wrong = (q_start < 0) | (q_end < q_start) | (q_end > total_q)
    q_len = tl.where(wrong, 0, q_end - q_start)
    kv_start, kv_end = kv_start.to(tl.int64), kv_end.to(tl.int64)
    splits = kv_end >= kv_start
    work = work_of(q_start, q_len, kv_start, kv_end, splits, num_kv_indices, QUERIES, CHUNK, SHORT, MANY)
    return work, tl.where(wrong, 0, total_q - q_end).to(tl.int32)


@triton.jit
def work_of(
    q_start, q_len, kv_start, kv_end, splits, num_kv_indices,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Of a request: its first row, rows, first key and keys, its keys that exist, its tiles (none if `short` takes it),
    its chunks and the keys in each, as `schedule` has it, int32.

    total_q and num_kv_indices are below 2^30 (host.py). 2^31 - 1 keys stand for any larger number.
    """
    q_len = q_len.to(tl.int32)
    kv_len = tl.minimum(tl.maximum(kv_end - kv_start, 0), 2**31 - 1)
    sound = existing_keys(kv_start, kv_len, num_kv_indices).to(tl.int32)
    kv_len = kv_len.to(tl.int32)
    tiles, chunks, length = requested_work(q_len, kv_len, sound, splits, QUERIES, CHUNK, SHORT, MANY)
    tiles, chunks, length = tiles.to(tl.int32), chunks.to(tl.int32), length.to(tl.int32)
    return q_start.to(tl.int32), q_len, kv_start.to(tl.int32), kv_len, sound, tiles, chunks, length


@triton.jit
def short_rows(work):
    """How many rows of a request `short` takes: all or none."""
    _row, q_len, _kv_start, _kv_len, _sound, tiles, _chunks, _length = work
    return tl.where(tiles == 0, q_len, 0)


@triton.jit
def choose(work, lane, place, total, programs, num_kv_indices, QUERIES: tl.constexpr):
    """Number `place` of all `total` items, those of more keys first unless each program has one at most: which request
    it belongs to, as a mask, and how many of its items come before. Those of a class, which are about as long, go by
    requests, so that tiles over the same keys stay together.
    """
    _row, _q_len, _kv_start, _kv_len, _sound, tiles, chunks, _length = work
    longer = tiles * 0
    own = tiles * chunks
    nth = place
    if total > programs:
        nth_class = place * 0
        # No request has more keys than class 2 * step - 1.
        step = tl.where(num_kv_indices <= 896, 8, tl.where(num_kv_indices <= 14336, 16, 64))
        while step > 0:
            later = nth_class + step
            nth_class = tl.where(tl.sum(_longer(work, later - 1, QUERIES), 0) > place, later, nth_class)
            step = step // 2
        longer = _longer(work, nth_class, QUERIES)
        own = _longer(work, nth_class - 1, QUERIES) - longer
        nth = place - tl.sum(longer, 0)
    chosen = place * 0
    step = LANES // 2
    while step > 0:
        later = chosen + step
        chosen = tl.where(tl.sum(tl.where(lane < later, own, 0), 0) > nth, chosen, later)
        step = step // 2
    nth += pick(longer, lane == chosen) - tl.sum(tl.where(lane < chosen, own, 0), 0)
    return lane == chosen, nth


@triton.jit
def _longer(work, nth_class, QUERIES: tl.constexpr):
    """How many items of each request have more keys than those of a class; all of them for class -1.

    Classes end at 64, 80, 96, 112, 128, 160 keys and so on, four for each power of two.
    """
    _row, q_len, _kv_start, kv_len, sound, tiles, chunks, length = work
    limit = tl.minimum(tl.maximum(nth_class, 0), _LAST_CLASS)
    limit = (64 + 16 * (limit & 3)) << (limit >> 2)
    # Tile i sees prefix + QUERIES * (i + 1) keys, the last one all, and none more than exist.
    prefix = kv_len - q_len
    shorter = tl.where(limit < prefix, 0, tl.minimum((limit - prefix) // QUERIES, tl.maximum(tiles - 1, 0)))
    whole = tl.where(limit >= sound, 0, tiles - shorter)
    split = tl.where(length > limit, tiles * chunks, 0)
    return tl.where(nth_class < 0, tiles * chunks, tl.where(chunks > 1, split, whole))


@triton.jit
def _extents(pointers, lane, batch, total_q):
    """Of request number `lane`, `batch` being the padding: where its rows begin and end, whether that is out of order,
    and where its keys begin and end, int64."""
    q_start, q_end, kv_start, kv_end = pointers
    q_end = tl.where(lane == batch, total_q, q_end)
    wrong = (lane < batch) & ((q_start < 0) | (q_end < q_start) | (q_end > total_q))
    return q_start, q_end, wrong, kv_start.to(tl.int64), kv_end.to(tl.int64)


@triton.jit
def pick(values, chosen):
    """The value of the one lane that is chosen; 0 if none is."""
    return tl.sum(tl.where(chosen, values, 0), 0)
