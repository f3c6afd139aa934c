"""The chunks of split requests put together: the last launch of a call."""

import triton
import triton.language as tl

from .attend import elements
from .found import LANES, look, pick
from .launch import wait_for_launch
from .lookup import extent, first_slot
from .split import is_split, is_split_in_list, split_length


@triton.jit(do_not_specialize=list(range(18)))
def merge(
    scratch, scratch_lse, items, qo_indptr, kv_indptr, output, lse,
    qo_step: tl.int64, kv_step: tl.int64,
    output_row: tl.int64, output_head: tl.int64, output_dim: tl.int64, lse_row: tl.int64, lse_head: tl.int64,
    total_q: tl.int64, batch: tl.int64, num_kv_indices: tl.int64, team: tl.int32,
    WAY: tl.constexpr, SHORT: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr, QUERIES: tl.constexpr,
    CHUNK: tl.constexpr, AT_ONCE: tl.constexpr, ROUND: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """`team` programs per request share its queries and heads out among them, and where there are many chunks columns.

    Up to AT_ONCE chunks are merged at once, more ROUND at a time, in order.
    WAY: how programs came to their items, see plan.py. If "listed", `items` says whether anything was split at all.
    """
    wait_for_launch(WAIT)
    qo = (qo_indptr, qo_step)
    kv = (kv_indptr, kv_step)
    request = (tl.program_id(0) // team).to(tl.int64)
    q_start, q_end, kv_start, kv_len = extent(qo, kv, request, batch, total_q)
    q_len = q_end - q_start
    length = split_length(q_len, kv_len, QUERIES, CHUNK)
    if WAY == "listed":
        split = is_split_in_list(items, q_len, kv_start, kv_len, num_kv_indices, QUERIES, CHUNK)
    elif WAY == "found":
        lane = tl.arange(0, LANES)
        chunks = look(qo, kv, lane, batch, total_q, num_kv_indices, QUERIES, CHUNK, SHORT)[6]
        split = pick(chunks, lane == request) > 1
    else:
        split = is_split(
            qo, kv, request, batch, total_q, num_kv_indices, q_start, q_end, kv_start, kv_len, QUERIES, CHUNK
        )
    if not split:
        return
    parts = (scratch, scratch_lse, first_slot(kv_start, CHUNK), q_len.to(tl.int32), length)
    results = ((output, output_row, output_head, output_dim), (lse, lse_row, lse_head))
    member = tl.program_id(0) % team
    if tl.cdiv(kv_len, length) <= AT_ONCE:
        _merge_rows(parts, results, q_start, kv_len - q_len, member, team, AT_ONCE, CKV, HEADS, CKV)
    else:
        _merge_rows(parts, results, q_start, kv_len - q_len, member, team, ROUND, CKV // 8, HEADS, CKV)


@triton.jit
def _merge_rows(
    parts, results, q_start, prefix, member, team,
    CHUNKS: tl.constexpr, WIDTH: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr,
):  # fmt: skip
    """A member's share of a request: WIDTH columns of a query and head at a time, over CHUNKS chunks at a time."""
    scratch, scratch_lse, slot, q_rows, length = parts
    output, lse = results
    PIECES: tl.constexpr = CKV // WIDTH
    for share in tl.range(member, q_rows * HEADS * PIECES, team, num_stages=1):
        column = share % PIECES * WIDTH
        head = share // PIECES % HEADS
        query = share // PIECES // HEADS
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
