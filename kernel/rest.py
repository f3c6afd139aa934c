"""What prefill_hopper leaves, in one launch: the rows of few keys (short.py) beside it, then the chunks (merge.py)."""

import triton
import triton.language as tl

from .early import wait_for_launch
from .found import LANES, look, pick, row_pointers, short_rows
from .listing import ROW, ROW_COUNT, ROWS_TAKEN, load_row
from .lookup import extent
from .merge import count_shares, merge_share
from .short import attend_row
from .split import is_split_in_list, split_length


@triton.jit(do_not_specialize=list(range(35)))
def rest(
    q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, output, lse, scratch, scratch_lse, items,
    q_nope_row: tl.int64, q_nope_head: tl.int64, q_nope_dim: tl.int64,
    q_pe_row: tl.int64, q_pe_head: tl.int64, q_pe_dim: tl.int64,
    ckv_page: tl.int64, ckv_dim: tl.int64, kpe_page: tl.int64, kpe_dim: tl.int64,
    qo_step: tl.int64, kv_step: tl.int64, index_step: tl.int64,
    output_row: tl.int64, output_head: tl.int64, output_dim: tl.int64, lse_row: tl.int64, lse_head: tl.int64,
    scale: tl.float32,
    total_q: tl.int32, batch: tl.int32, num_kv_indices: tl.int64, num_pages: tl.int64, rows_at: tl.int64,
    VECTORS: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr, PIECES: tl.constexpr,
    FEW: tl.constexpr, ONCE: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr, QUERIES: tl.constexpr,
    CHUNK: tl.constexpr, AT_ONCE: tl.constexpr, ROUND: tl.constexpr, SLICES: tl.constexpr, LISTED: tl.constexpr,
    SPLITS: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """Launched to run beside prefill_hopper, which has seen the end of what came before.

    LISTED  rows and what was split stand in `items`, see listing.py; else each program looks for itself, see found.py
    SPLITS  there may be split requests
    """
    # Known to be so, which leaves one address per row where there were eight.
    queries = ((q_nope, q_nope_row, q_nope_head, 1), (q_pe, q_pe_row, q_pe_head, 1))
    ckv = (ckv_cache, ckv_page, 1)
    kpe = (kpe_cache, kpe_page, 1)
    qo = (qo_indptr, qo_step)
    kv = (kv_indptr, kv_step)
    pages = (kv_indices, index_step, num_kv_indices, num_pages)
    results = ((output, output_row, output_head, 1), (lse, lse_row, lse_head))
    program = tl.program_id(0)
    if LISTED:
        # Whoever is free takes the next: many programs begin only when the launch beside them has made room.
        count = tl.load(items + ROW_COUNT)
        nth = tl.atomic_add(items + ROWS_TAKEN, 1)
        while nth < count:
            following = tl.atomic_add(items + ROWS_TAKEN, 1)
            row, end, sees, kv_start = load_row(items + rows_at + ROW * nth.to(tl.int64))
            attend_row(
                queries, ckv, kpe, pages, results, row, kv_start, sees, end, scale,
                PIECES, FEW, ONCE, HEADS, CKV, KPE, VECTORS,
            )  # fmt: skip
            nth = following
    else:
        lane = tl.arange(0, LANES)
        work = look(
            row_pointers(qo, kv, lane, batch), lane, batch, total_q, num_kv_indices, QUERIES, CHUNK, SHORT, MANY
        )
        rows = short_rows(work)
        before = tl.cumsum(rows, 0) - rows
        count = tl.sum(rows, 0)
        nth = program
        while nth < count:
            row, end, sees, kv_start = _short_row(work, nth - before, rows)
            attend_row(
                queries, ckv, kpe, pages, results, row, kv_start, sees, end, scale,
                PIECES, FEW, ONCE, HEADS, CKV, KPE, VECTORS,
            )  # fmt: skip
            nth += tl.num_programs(0)
    shares = 0
    if SPLITS:
        for first in tl.range(0, batch, LANES, num_stages=1):
            lane = first + tl.arange(0, LANES)
            shares += tl.sum(_shares(
                qo, kv, items, lane, total_q, batch, num_kv_indices,
                QUERIES, CHUNK, SHORT, MANY, AT_ONCE, SLICES, HEADS, LISTED,
            ), 0)  # fmt: skip
    if shares > 0:
        _merge_all(
            qo, kv, items, scratch, scratch_lse, results, shares, total_q, batch, num_kv_indices,
            QUERIES, CHUNK, SHORT, MANY, AT_ONCE, ROUND, SLICES, HEADS, CKV, LISTED, WAIT,
        )  # fmt: skip
    # Where nothing is merged one waits for all: if each did, those that find no room beside the launch before, and have
    # rows to compute, would begin only then.
    if program == 0:
        wait_for_launch(WAIT)


@triton.jit
def _short_row(work, nth, rows):
    """As `load_row`, of the one request for which `nth` is the number of one of its `rows` rows for `short`."""
    first_row, q_len, first_key, kv_len, sound, _tiles, _chunks, _length = work
    chosen = (nth >= 0) & (nth < rows)
    kv_len = pick(kv_len, chosen)
    nth = pick(nth, chosen)
    sees = tl.minimum(tl.maximum(kv_len - pick(q_len, chosen) + nth + 1, 0), kv_len)
    end = tl.minimum(sees, pick(sound, chosen))
    return (pick(first_row, chosen) + nth).to(tl.int64), end, sees, pick(first_key, chosen).to(tl.int64)


@triton.jit
def _merge_all(
    qo, kv, items, scratch, scratch_lse, results, all_shares, total_q, batch, num_kv_indices,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr, AT_ONCE: tl.constexpr,
    ROUND: tl.constexpr, SLICES: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr, LISTED: tl.constexpr,
    WAIT: tl.constexpr,
):  # fmt: skip
    """Programs take as many shares each of all split requests, in a row; LANES requests are looked at at a time.

    Those that have found a share wait for the launch before, which computes what they merge.
    """
    own = tl.cdiv(all_shares, tl.num_programs(0))
    nth = tl.program_id(0) * own
    stop = tl.minimum(nth + own, all_shares)
    earlier = 0
    for first in tl.range(0, batch, LANES, num_stages=1):
        lane = first + tl.arange(0, LANES)
        shares = _shares(
            qo, kv, items, lane, total_q, batch, num_kv_indices,
            QUERIES, CHUNK, SHORT, MANY, AT_ONCE, SLICES, HEADS, LISTED,
        )  # fmt: skip
        count = tl.sum(shares, 0)
        before = earlier + tl.cumsum(shares, 0) - shares
        earlier += count
        while nth < tl.minimum(stop, earlier):
            chosen = (before <= nth) & (nth < before + shares)
            request = pick(lane, chosen).to(tl.int64)
            q_start, q_end, kv_start, kv_len = extent(qo, kv, request, batch, total_q)
            first_share = pick(before, chosen)
            end = tl.minimum(stop, first_share + pick(shares, chosen))
            wait_for_launch(WAIT)
            for share in tl.range(nth - first_share, end - first_share, num_stages=1):
                merge_share(
                    scratch, scratch_lse, results, share, q_start, q_end - q_start, kv_start, kv_len,
                    QUERIES, CHUNK, AT_ONCE, ROUND, SLICES, HEADS, CKV,
                )  # fmt: skip
            nth = end


@triton.jit
def _shares(
    qo, kv, items, lane, total_q, batch, num_kv_indices,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr, AT_ONCE: tl.constexpr,
    SLICES: tl.constexpr, HEADS: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    """How many shares the merging of each request has; those past the last one have none."""
    if LISTED:
        q_start, q_end, kv_start, kv_len = extent(qo, kv, tl.minimum(lane, batch), batch, total_q)
        q_len = q_end - q_start
        split = is_split_in_list(items, q_len, kv_start, kv_len, num_kv_indices, QUERIES, CHUNK)
        chunks = tl.where(split, tl.cdiv(kv_len, split_length(q_len, kv_len, QUERIES, CHUNK)), 1)
    else:
        _q_start, q_len, _kv_start, _kv_len, _sound, _tiles, chunks, _length = look(
            row_pointers(qo, kv, lane, batch), lane, batch, total_q, num_kv_indices, QUERIES, CHUNK, SHORT, MANY
        )
    return tl.where(chunks > 1, count_shares(q_len, chunks, AT_ONCE, SLICES, HEADS), 0).to(tl.int32)
