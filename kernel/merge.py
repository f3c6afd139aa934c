"""The chunks of split requests put together: the last launch of a call. On Hopper rest.py does it."""

import triton
import triton.language as tl

from .attend import elements
from .early import wait_for_launch
from .lookup import extent, first_slot
from .split import is_split, split_length


@triton.jit(do_not_specialize=list(range(17)))
def merge(
    scratch, scratch_lse, qo_indptr, kv_indptr, output, lse,
    qo_step: tl.int64, kv_step: tl.int64,
    output_row: tl.int64, output_head: tl.int64, output_dim: tl.int64, lse_row: tl.int64, lse_head: tl.int64,
    total_q: tl.int64, batch: tl.int64, num_kv_indices: tl.int64, team: tl.int32,
    HEADS: tl.constexpr, CKV: tl.constexpr, QUERIES: tl.constexpr, CHUNK: tl.constexpr,
    AT_ONCE: tl.constexpr, ROUND: tl.constexpr, SLICES: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """`team` programs per request share its queries and heads out among them, and where there are many chunks columns.

    Up to AT_ONCE chunks are merged at once, more ROUND at a time, in order.
    """
    wait_for_launch(WAIT)
    qo = (qo_indptr, qo_step)
    kv = (kv_indptr, kv_step)
    request = (tl.program_id(0) // team).to(tl.int64)
    q_start, q_end, kv_start, kv_len = extent(qo, kv, request, batch, total_q)
    q_len = q_end - q_start
    length = split_length(q_len, kv_len, QUERIES, CHUNK)
    split = is_split(qo, kv, request, batch, total_q, num_kv_indices, q_start, q_end, kv_start, kv_len, QUERIES, CHUNK)
    if not split:
        return
    results = ((output, output_row, output_head, output_dim), (lse, lse_row, lse_head))
    shares = count_shares(q_len, tl.cdiv(kv_len, length), AT_ONCE, SLICES, HEADS).to(tl.int32)
    for share in tl.range(tl.program_id(0) % team, shares, team, num_stages=1):
        merge_share(
            scratch, scratch_lse, results, share, q_start, q_len, kv_start, kv_len, QUERIES, CHUNK, AT_ONCE, ROUND,
            SLICES, HEADS, CKV,
        )  # fmt: skip


@triton.jit
def count_shares(q_len, chunks, AT_ONCE: tl.constexpr, SLICES: tl.constexpr, HEADS: tl.constexpr):
    """Into how many shares the merging of a split request falls: a query and head, and of many chunks a slice of it."""
    return q_len * HEADS * tl.where(chunks <= AT_ONCE, 1, SLICES)


@triton.jit
def merge_share(
    scratch, scratch_lse, results, share, q_start, q_len, kv_start, kv_len,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, AT_ONCE: tl.constexpr, ROUND: tl.constexpr, SLICES: tl.constexpr,
    HEADS: tl.constexpr, CKV: tl.constexpr,
):  # fmt: skip
    """A share of a split request: up to AT_ONCE chunks are merged at once, more ROUND at a time, in order."""
    length = split_length(q_len, kv_len, QUERIES, CHUNK)
    parts = (scratch, scratch_lse, first_slot(kv_start, CHUNK), q_len.to(tl.int32), length)
    if tl.cdiv(kv_len, length) <= AT_ONCE:
        _merge(parts, results, share, q_start, kv_len - q_len, AT_ONCE, 1, HEADS, CKV)
    else:
        _merge(parts, results, share, q_start, kv_len - q_len, ROUND, SLICES, HEADS, CKV)


@triton.jit
def _merge(
    parts, results, share, q_start, prefix,
    CHUNKS: tl.constexpr, SLICES: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr,
):  # fmt: skip
    scratch, scratch_lse, slot, q_rows, length = parts
    output, lse = results
    WIDTH: tl.constexpr = CKV // SLICES
    column = share % SLICES * WIDTH
    head = share // SLICES % HEADS
    query = share // SLICES // HEADS
    # Chunks that the query does not see were not written.
    seen = tl.cdiv(prefix + query + 1, length).to(tl.int32)
    first = slot * HEADS + query * HEADS + head
    m = float("-inf")
    total = 0.0
    acc = tl.zeros([WIDTH], tl.float32)
    for start in tl.range(0, seen, CHUNKS, num_stages=1):
        chunk = start + tl.arange(0, CHUNKS)
        there = chunk < seen
        row = first + chunk * (q_rows * HEADS)
        part = tl.load(elements(scratch + column, row * CKV, 1, WIDTH, True), mask=there[:, None], other=0.0)
        part_m = tl.load(scratch_lse + 2 * row, mask=there, other=-float("inf"))
        part_total = tl.load(scratch_lse + 2 * row + 1, mask=there, other=0.0)
        m_new = tl.maximum(m, tl.max(part_m, 0))
        # A row all of whose scores are -inf so far: it holds NaN, or has not met its keys yet.
        shift = tl.where(m_new == -float("inf"), 0.0, m_new)
        weight = tl.exp2(part_m - shift)
        total = total * tl.exp2(m - shift) + tl.sum(part_total * weight, 0)
        acc = acc * tl.exp2(m - shift) + tl.sum(part * weight[:, None], 0)
        m = m_new
    row = q_start + query
    tl.store(lse[0] + row * lse[1] + head * lse[2], m + tl.log2(total))
    place = output[0] + row * output[1] + head * output[2] + (column + tl.arange(0, WIDTH)) * output[3]
    tl.store(place, (acc / total).to(output[0].dtype.element_ty))
