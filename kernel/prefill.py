"""The portable kernel of requests of several queries: a tile of them per program, one pass over the keys that it sees.

What each promise of the contract costs, here and in the kernels beside it:

- hardened: index entries are 64-bit before any arithmetic. Key positions are compared with the size of what they index,
  page ids are clamped, and a row that names a bad one is made NaN at the end.
- nan-contained: no page is read that a live key does not name.
- masked-rows, padding: a row that sees no key keeps total = 0, which becomes +0 and -inf. Rows past qo_indptr[-1]
  form one more request, without keys.
- causal-contained: where a row of a tile met a NaN, the few keys that not every row of the tile sees are looked at. If
  one of them is to blame, the tile is done again up to it.
- repeatable, batch-invariant, page-invariant: a request's own lengths decide which program does what, tiles and chunks
  start at its first query and key, and keys come in order.
"""

import triton
import triton.language as tl

from .attend import attend, first_unsound_key, store_rows
from .early import wait_for_launch
from .lookup import existing_keys, extent, find_request, first_tile, is_short
from .split import is_split


# Nothing is specialised on a value, so a new shape never compiles: one variant per combination of dtypes and VECTORS.
@triton.jit(do_not_specialize=list(range(33)))
def prefill(
    q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, output, lse,
    q_nope_row: tl.int64, q_nope_head: tl.int64, q_nope_dim: tl.int64,
    q_pe_row: tl.int64, q_pe_head: tl.int64, q_pe_dim: tl.int64,
    ckv_page: tl.int64, ckv_dim: tl.int64, kpe_page: tl.int64, kpe_dim: tl.int64,
    qo_step: tl.int64, kv_step: tl.int64, index_step: tl.int64,
    output_row: tl.int64, output_head: tl.int64, output_dim: tl.int64, lse_row: tl.int64, lse_head: tl.int64,
    scale: tl.float32,
    total_q: tl.int64, batch: tl.int64, num_kv_indices: tl.int64, num_pages: tl.int64, slots: tl.int64,
    VECTORS: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PIECES: tl.constexpr,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """One tile per program: QUERIES queries of a request that is not split, over all keys that they see."""
    wait_for_launch(WAIT)
    qo = (qo_indptr, qo_step)
    kv = (kv_indptr, kv_step)
    # Later queries see more keys: the longest tiles start first.
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    request = find_request(qo, kv, batch, tile, False, QUERIES, CHUNK)
    q_start, q_end, kv_start, kv_len = extent(qo, kv, request, batch, total_q)
    q_first = q_start + QUERIES * (tile - first_tile(q_start, request, QUERIES))
    if (q_first < q_start) | (q_first >= q_end) | (q_first < 0) | (q_first >= total_q):
        return
    sound = existing_keys(kv_start, kv_len, num_kv_indices)
    if (q_end - q_start == 1) | is_short(q_end - q_start, sound, SHORT, MANY):
        return
    if slots > 0:  # noqa: SIM102 - Triton evaluates both sides of `and`
        if is_split(qo, kv, request, batch, total_q, num_kv_indices, q_start, q_end, kv_start, kv_len, QUERIES, CHUNK):
            return

    # Keys that a row sees, and how many of them there are to see.
    query = q_first + tl.arange(0, QUERIES * HEADS) // HEADS
    q_stop = tl.minimum(tl.minimum(q_first + QUERIES, q_end), total_q)
    live = query < q_stop
    prefix = kv_len - (q_end - q_start)
    sees = tl.minimum(tl.maximum(prefix + (query - q_start) + 1, 0), kv_len)
    least = tl.minimum(tl.maximum(prefix + (q_first - q_start) + 1, 0), kv_len)
    most = tl.minimum(tl.maximum(prefix + (q_stop - q_start), 0), kv_len)

    ckv = (ckv_cache, ckv_page, ckv_dim)
    kpe = (kpe_cache, kpe_page, kpe_dim)
    pages = (kv_indices + kv_start * index_step, index_step, num_pages)
    queries = ((q_nope, q_nope_row, q_nope_head, q_nope_dim), (q_pe, q_pe_row, q_pe_head, q_pe_dim))
    results = ((output, output_row, output_head, output_dim), (lse, lse_row, lse_head))
    end = tl.minimum(most, sound)
    spoilt = _tile(
        queries, ckv, kpe, pages, results, query, live, sees, sound, end, scale,
        BLOCK_N, STAGES, PIECES, HEADS, CKV, KPE, VECTORS,
    )  # fmt: skip
    if spoilt & (least < end):
        # A key with a NaN or Inf spoils the rows that do not see it: 0 * NaN. Those that do see it or a later one are
        # NaN in any case, so the tile is done again up to there.
        sound = first_unsound_key(ckv, kpe, pages, least, end, QUERIES, CKV, KPE, VECTORS)
        if sound < end:
            _tile(
                queries, ckv, kpe, pages, results, query, live, sees, sound, sound, scale,
                BLOCK_N, STAGES, PIECES, HEADS, CKV, KPE, VECTORS,
            )  # fmt: skip


@triton.jit
def _tile(
    queries, ckv, kpe, pages, results, query, live, sees, sound, end, scale,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PIECES: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr,
    KPE: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """Results of a tile over its keys up to `end`, NaN in the rows that see more than `sound` keys.

    Returns whether a row met a NaN or an Inf or a page outside the cache.
    """
    spoilt = False
    if end > 0:
        m, total, acc, exist = attend(
            queries[0], queries[1], ckv, kpe, pages, query, live, tl.minimum(sees, end).to(tl.int32), 0,
            end.to(tl.int32), scale, BLOCK_N, STAGES, PIECES, HEADS, CKV, KPE, VECTORS,
        )  # fmt: skip
        spoilt = (not exist) | (tl.max((total != total).to(tl.int32), 0) == 1)
        total = tl.where(exist & (sees <= sound), total, float("nan"))
        store_rows(results[0], results[1], m, total, acc, query, live, HEADS, CKV, VECTORS)
    else:
        nothing = tl.where(sees <= sound, 0.0, float("nan"))
        weighted = (tl.zeros([query.shape[0], CKV], tl.float32),)
        store_rows(results[0], results[1], nothing, nothing, weighted, query, live, HEADS, CKV, VECTORS)
    return spoilt
