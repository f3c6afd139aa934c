"""Split-KV: few queries over many keys. `lone` computes each query over chunks of its keys, `merge` puts them together.

A request is split if it has more keys than `split_length` says, into chunks of that many keys, and all of them exist.
Nothing but the request's own lengths decides, so its bits do not depend on what else is in the batch. `is_split` tells
where programs search for their requests, `count_chunks` and then `is_split_in_list` where `schedule` lists them.

Partial results lie in slots of scratch, one per query and chunk: query i's of chunk c is number c * q_len + i of its
request. A request fills less than 2 * kv_len / CHUNK slots, so that the scratch grows with the number of keys alone.
"""

import triton
import triton.language as tl

from .attend import elements
from .launch import wait_for_launch
from .listing import ITEM_COUNT, SPLITTING
from .lookup import extent, find_request, first_slot, own_slots


@triton.jit
def split_length(q_len, kv_len, QUERIES: tl.constexpr, CHUNK: tl.constexpr):
    """Keys per chunk: few for a short request, which would not fill the GPU, more for a long one, as merging costs.

    Slots are q_len * cdiv(kv_len, length) < q_len * kv_len / length + q_len, and split means q_len < kv_len / CHUNK in
    the first case, cdiv(q_len, QUERIES) < kv_len / (4 * CHUNK) in the second: less than 2 * kv_len / CHUNK in both, as
    QUERIES is at most 4.
    """
    return tl.where(kv_len <= 8 * CHUNK, CHUNK * q_len, 4 * CHUNK * tl.cdiv(q_len, QUERIES))


@triton.jit
def is_split(
    qo, kv, request, batch, total_q, num_kv_indices, q_start, q_end, kv_start, kv_len,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Whether a request is split; every program of every launch comes to the same answer.

    Where row pointers decrease, the search may give slots of the request to another one. All of its slots are its own
    if the first and the last one are, as the search takes the same turns for what lies between. If not, it stays whole.
    """
    q_len = q_end - q_start
    answer = (request < batch) & (q_start >= 0) & (q_len > 0) & (q_end <= total_q)
    answer = answer & (kv_start >= 0) & (kv_start + kv_len <= num_kv_indices)
    answer = answer & (kv_len > split_length(q_len, kv_len, QUERIES, CHUNK))
    if answer:
        slot = first_slot(kv_start, CHUNK)
        last = slot + own_slots(kv_len, CHUNK) - 1
        answer = (find_request(qo, kv, batch, slot, True, QUERIES, CHUNK) == request) & (
            find_request(qo, kv, batch, last, True, QUERIES, CHUNK) == request
        )
    return answer


@triton.jit
def count_chunks(q_len, kv_len, sound, may, QUERIES: tl.constexpr, CHUNK: tl.constexpr):
    """Into how many chunks `schedule` cuts requests of at least one query and key, and how many keys go into each.

    sound   how many of a request's keys exist
    may     where nothing but the lengths is left to decide; elsewhere there is one chunk
    """
    length = split_length(q_len, sound, QUERIES, CHUNK)
    return tl.where(may & (sound == kv_len), tl.cdiv(sound, length), 1), length


@triton.jit
def is_split_in_list(items, q_len, kv_start, kv_len, num_kv_indices, QUERIES: tl.constexpr, CHUNK: tl.constexpr):
    """Whether `schedule` split a request. Slots need no second look: it splits none where key pointers fall."""
    answer = (tl.load(items + ITEM_COUNT) > 0) & (tl.load(items + SPLITTING) > 0)
    answer = answer & (q_len > 0) & (kv_len > split_length(q_len, kv_len, QUERIES, CHUNK))
    return answer & (kv_start >= 0) & (kv_start + kv_len <= num_kv_indices)


@triton.jit
def store_slot(scratch, scratch_lse, slot, m, total, acc, HEADS: tl.constexpr, CKV: tl.constexpr):
    """Write what `attend` returned for one query as it is."""
    WIDTH: tl.constexpr = CKV // len(acc)
    row = slot * HEADS + tl.arange(0, HEADS)
    tl.store(scratch_lse + 2 * row, m)
    tl.store(scratch_lse + 2 * row + 1, total)
    for i in tl.static_range(len(acc)):
        tl.store(elements(scratch + i * WIDTH, row * CKV, 1, WIDTH, True), acc[i])


@triton.jit(do_not_specialize=list(range(18)))
def merge(
    scratch, scratch_lse, items, qo_indptr, kv_indptr, output, lse,
    qo_step: tl.int64, kv_step: tl.int64,
    output_row: tl.int64, output_head: tl.int64, output_dim: tl.int64, lse_row: tl.int64, lse_head: tl.int64,
    total_q: tl.int64, batch: tl.int64, num_kv_indices: tl.int64, team: tl.int32,
    LISTED: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr, QUERIES: tl.constexpr, CHUNK: tl.constexpr,
    WAIT: tl.constexpr,
):  # fmt: skip
    """`team` programs per request share its queries, heads and columns out among them; chunks are merged in order.

    LISTED: `items` says whether anything was split at all, see listing.py.
    """
    wait_for_launch(WAIT)
    BLOCK: tl.constexpr = 16
    WIDTH: tl.constexpr = 128
    PIECES: tl.constexpr = CKV // WIDTH
    qo = (qo_indptr, qo_step)
    kv = (kv_indptr, kv_step)
    request = (tl.program_id(0) // team).to(tl.int64)
    q_start, q_end, kv_start, kv_len = extent(qo, kv, request, batch, total_q)
    q_len = q_end - q_start
    length = split_length(q_len, kv_len, QUERIES, CHUNK)
    if LISTED:
        split = is_split_in_list(items, q_len, kv_start, kv_len, num_kv_indices, QUERIES, CHUNK)
    else:
        split = is_split(
            qo, kv, request, batch, total_q, num_kv_indices, q_start, q_end, kv_start, kv_len, QUERIES, CHUNK
        )
    if not split:
        return
    q_rows = q_len.to(tl.int32)
    first_row = first_slot(kv_start, CHUNK) * HEADS
    for share in tl.range(tl.program_id(0) % team, q_rows * HEADS * PIECES, team, num_stages=1):
        column = share % PIECES * WIDTH
        head = share // PIECES % HEADS
        query = share // PIECES // HEADS
        # Chunks that the query does not see were not written.
        seen = tl.cdiv(kv_len - q_len + query + 1, length).to(tl.int32)
        first_of_query = first_row + query * HEADS + head
        m, total = _merged_lse(scratch_lse, first_of_query, q_rows * HEADS, seen)
        acc = tl.zeros([WIDTH], tl.float32)
        for first in tl.range(0, seen, BLOCK, num_stages=2):
            chunk = first + tl.arange(0, BLOCK)
            there = chunk < seen
            row = first_of_query + chunk * (q_rows * HEADS)
            weight = tl.exp2(tl.load(scratch_lse + 2 * row, mask=there, other=-float("inf")) - m)
            part = tl.load(elements(scratch + column, row * CKV, 1, WIDTH, True), mask=there[:, None], other=0.0)
            acc += tl.sum(part * weight[:, None], 0)
        row = q_start + query
        tl.store(lse + row * lse_row + head * lse_head, m + tl.log2(total))
        place = output + row * output_row + head * output_head + (column + tl.arange(0, WIDTH)) * output_dim
        tl.store(place, (acc / total).to(output.dtype.element_ty))


@triton.jit
def _merged_lse(scratch_lse, row, step, seen):
    """The maximum of all chunks and the denominator relative to it; rows of chunks lie `step` apart."""
    BLOCK: tl.constexpr = 128
    m = float("-inf")
    total = 0.0
    for first in tl.range(0, seen, BLOCK, num_stages=1):
        chunk = first + tl.arange(0, BLOCK)
        at = scratch_lse + 2 * (row + chunk * step)
        chunk_m = tl.load(at, mask=chunk < seen, other=-float("inf"))
        chunk_total = tl.load(at + 1, mask=chunk < seen, other=0.0)
        m_new = tl.maximum(m, tl.max(chunk_m, 0))
        # A row all of whose scores are -inf so far: it holds NaN, or has not met its keys yet.
        shift = tl.where(m_new == -float("inf"), 0.0, m_new)
        total = total * tl.exp2(m - shift) + tl.sum(chunk_total * tl.exp2(chunk_m - shift), 0)
        m = m_new
    return tl.where(m == -float("inf"), 0.0, m), total
