"""Batches of few requests: programs find their work in the row pointers, all of which they look at together.

That is what `schedule` would list (schedule.py), without a launch for it and a list to wait for. Each thread of a warp
holds a request, and the next one the padding. Under Gluon the same functions run in the kernel for Hopper.
"""

import triton
import triton.language as tl

from .lookup import existing_keys, is_short
from .schedule import requested_work

# Row pointers that a warp holds: of 31 requests.
LANES = tl.constexpr(32)
MOST_REQUESTS = LANES.value - 1


@triton.jit
def look(
    qo, kv, lane, batch, total_q, num_kv_indices,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Of request number `lane`, LANES numbers of which those past `batch` are none: its first row, rows, first key and
    keys, its keys that exist, its tiles (none if `short` takes it), its chunks and the keys in each, as `schedule` has
    it, int32. No rows at all where query pointers are not in order; no chunks where key pointers are not.

    total_q and num_kv_indices are below 2^30 (host.py). 2^31 - 1 keys stand for any larger number.
    """
    q_start, q_end, wrong, kv_start, kv_end = _pointers(qo, kv, lane, batch, total_q)
    in_order = tl.sum(wrong.to(tl.int32), 0) == 0
    splits = tl.sum((kv_end < kv_start).to(tl.int32), 0) == 0
    q_len = tl.where(in_order & (lane <= batch), q_end - q_start, 0).to(tl.int32)
    kv_len = tl.minimum(tl.maximum(kv_end - kv_start, 0), 2**31 - 1)
    sound = existing_keys(kv_start, kv_len, num_kv_indices).to(tl.int32)
    kv_len = kv_len.to(tl.int32)
    tiles, chunks, length = requested_work(q_len, kv_len, sound, splits, QUERIES, CHUNK, SHORT, MANY)
    return q_start.to(tl.int32), q_len, kv_start.to(tl.int32), kv_len, sound, tiles, chunks, length


@triton.jit
def _pointers(qo, kv, lane, batch, total_q):
    """Of request number `lane`, `batch` being the padding: where its rows begin and end, whether that is out of order,
    and where its keys begin and end, int64."""
    at = tl.minimum(lane, batch)
    after = tl.minimum(lane + 1, batch)
    q_start = tl.load(qo[0] + at * qo[1])
    q_end = tl.load(qo[0] + after * qo[1])
    kv_start = tl.load(kv[0] + at * kv[1]).to(tl.int64)
    kv_end = tl.load(kv[0] + after * kv[1]).to(tl.int64)
    q_end = tl.where(lane == batch, total_q, q_end)
    wrong = (lane < batch) & ((q_start < 0) | (q_end < q_start) | (q_end > total_q))
    return q_start, q_end, wrong, kv_start, kv_end


@triton.jit
def pick(values, chosen):
    """The value of the one lane that is chosen; 0 if none is."""
    return tl.sum(tl.where(chosen, values, 0), 0)


@triton.jit
def has_short_rows(qo, kv, batch, total_q, num_kv_indices, SHORT: tl.constexpr, MANY: tl.constexpr):
    """Whether a request, or the padding, has rows that `short` takes, and query pointers are in order."""
    lane = tl.arange(0, LANES)
    q_start, q_end, wrong, kv_start, kv_end = _pointers(qo, kv, lane, batch, total_q)
    keys = existing_keys(kv_start, tl.maximum(kv_end - kv_start, 0), num_kv_indices)
    short = (lane <= batch) & (q_end > q_start) & is_short(q_end - q_start, keys, SHORT, MANY)
    return tl.max(short.to(tl.int32) + 2 * wrong.to(tl.int32), 0) == 1
