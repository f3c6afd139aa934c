"""One query per program: requests of one query, and the chunks of split ones.

Such programs are small: two fit on a multiprocessor and hide each other's waits, and they start fast.
"""

import triton
import triton.language as tl

from .attend import attend, store_rows
from .early import wait_for_launch
from .lookup import existing_keys, extent, find_request, first_slot, is_short
from .split import is_split, split_length, store_slot


@triton.jit(do_not_specialize=list(range(35)))
def lone(
    q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, output, lse, scratch, scratch_lse,
    q_nope_row: tl.int64, q_nope_head: tl.int64, q_nope_dim: tl.int64,
    q_pe_row: tl.int64, q_pe_head: tl.int64, q_pe_dim: tl.int64,
    ckv_page: tl.int64, ckv_dim: tl.int64, kpe_page: tl.int64, kpe_dim: tl.int64,
    qo_step: tl.int64, kv_step: tl.int64, index_step: tl.int64,
    output_row: tl.int64, output_head: tl.int64, output_dim: tl.int64, lse_row: tl.int64, lse_head: tl.int64,
    scale: tl.float32,
    total_q: tl.int64, batch: tl.int64, num_kv_indices: tl.int64, num_pages: tl.int64, slots: tl.int32,
    VECTORS: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PIECES: tl.constexpr,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """The first `slots` programs take a slot each, the others a request each."""
    wait_for_launch(WAIT)
    qo = (qo_indptr, qo_step)
    kv = (kv_indptr, kv_step)
    program = tl.program_id(0)
    in_slots = program < slots
    request = (program - slots).to(tl.int64)
    if in_slots:
        request = find_request(qo, kv, batch, program, True, QUERIES, CHUNK)
    q_start, q_end, kv_start, kv_len = extent(qo, kv, request, batch, total_q)
    q_len = q_end - q_start
    split = False
    if slots > 0:
        split = is_split(
            qo, kv, request, batch, total_q, num_kv_indices, q_start, q_end, kv_start, kv_len, QUERIES, CHUNK
        )
    if (split != in_slots) | (q_start < 0) | (q_start >= total_q):
        return

    # Query `nth` of the request over its keys start .. stop.
    nth = kv_len * 0
    start = kv_len * 0
    stop = existing_keys(kv_start, kv_len, num_kv_indices)
    if (not split) & ((q_len != 1) | is_short(q_len, stop, SHORT, MANY)):
        return
    if split:
        length = split_length(q_len, kv_len, QUERIES, CHUNK)
        nth = (program - first_slot(kv_start, CHUNK)) % q_len
        start = (program - first_slot(kv_start, CHUNK)) // q_len * length
        stop = tl.minimum(start + length, kv_len)
    sees = kv_len - q_len + nth + 1
    end = tl.minimum(sees, stop)
    # Chunks that the query does not see are not written.
    if end > start:
        head = tl.arange(0, HEADS).to(tl.int64)
        query = q_start + nth + head * 0
        m, total, acc, exist = attend(
            (q_nope, q_nope_row, q_nope_head, q_nope_dim), (q_pe, q_pe_row, q_pe_head, q_pe_dim),
            (ckv_cache, ckv_page, ckv_dim), (kpe_cache, kpe_page, kpe_dim),
            (kv_indices + kv_start * index_step, index_step, num_pages),
            query, head >= 0, (end + head * 0).to(tl.int32), start.to(tl.int32), end.to(tl.int32), scale,
            BLOCK_N, STAGES, PIECES, HEADS, CKV, KPE, VECTORS,
        )  # fmt: skip
        total = tl.where(exist & (split | (sees <= stop)), total, float("nan"))
        if split:
            store_slot(scratch, scratch_lse, program.to(tl.int64), m, total, acc, HEADS, CKV)
        else:
            store_rows(
                (output, output_row, output_head, output_dim), (lse, lse_row, lse_head),
                m, total, acc, query, head >= 0, HEADS, CKV, VECTORS,
            )  # fmt: skip
