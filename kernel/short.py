"""Requests of few keys, and rows without keys: one query per program, and up to 64 keys at once.

Small work is a chain of waits: for row pointers, page ids, rows, instructions. So a program looks up both row pointers
at once, 32 at a time, gathers every key before it multiplies, and runs a few hundred instructions once.

Which requests these are, their lengths decide (`is_short` in lookup.py), and of keys those that exist: positions inside
kv_indices, and none of an empty cache. A row that sees more keys than that is NaN, however many a row pointer claims.
All other requests are taken by the other launches, of which there are none where kv_indices is too short for one.

Where there are many rows, or most of them belong to other launches, programs take rows in turn. On Hopper rest.py takes
the place of `short` where there are other launches.
"""

import triton
import triton.language as tl

from .attend import attend, elements, key_places, page_id, store_rows
from .early import fetch, let_next_begin, wait_for_launch
from .lookup import existing_keys, find_row, is_short


@triton.jit(do_not_specialize=list(range(32)))
def short(
    q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, output, lse,
    q_nope_row: tl.int64, q_nope_head: tl.int64, q_nope_dim: tl.int64,
    q_pe_row: tl.int64, q_pe_head: tl.int64, q_pe_dim: tl.int64,
    ckv_page: tl.int64, ckv_dim: tl.int64, kpe_page: tl.int64, kpe_dim: tl.int64,
    qo_step: tl.int64, kv_step: tl.int64, index_step: tl.int64,
    output_row: tl.int64, output_head: tl.int64, output_dim: tl.int64, lse_row: tl.int64, lse_head: tl.int64,
    scale: tl.float32,
    total_q: tl.int32, batch: tl.int32, num_kv_indices: tl.int64, num_pages: tl.int64,
    VECTORS: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr, PIECES: tl.constexpr,
    FEW: tl.constexpr, ONCE: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr, ROWS: tl.constexpr,
    WAIT: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """ROWS says how a program finds its rows: "one" each, or "all" in turn. AHEAD: prefill_hopper may run beside it."""
    wait_for_launch(WAIT)
    let_next_begin(AHEAD)
    if VECTORS:
        # Known to be so, which leaves one address per row where there were eight.
        q_nope_dim = 1
        q_pe_dim = 1
        ckv_dim = 1
        kpe_dim = 1
        output_dim = 1
    queries = ((q_nope, q_nope_row, q_nope_head, q_nope_dim), (q_pe, q_pe_row, q_pe_head, q_pe_dim))
    ckv = (ckv_cache, ckv_page, ckv_dim)
    kpe = (kpe_cache, kpe_page, kpe_dim)
    qo = (qo_indptr, qo_step)
    kv = (kv_indptr, kv_step)
    pages = (kv_indices, index_step, num_kv_indices, num_pages)
    results = ((output, output_row, output_head, output_dim), (lse, lse_row, lse_head))
    program = tl.program_id(0)
    if num_kv_indices > 0:
        # Page ids come while the program waits for row pointers.
        fetch(kv_indices + tl.minimum(tl.arange(0, SHORT), num_kv_indices - 1) * index_step, WAIT)
    if ROWS == "one":
        find_and_attend(
            queries, ckv, kpe, qo, kv, pages, results, program, scale, total_q, batch,
            PIECES, FEW, ONCE, SHORT, MANY, HEADS, CKV, KPE, VECTORS,
        )  # fmt: skip
    else:
        row = program
        while row < total_q:
            find_and_attend(
                queries, ckv, kpe, qo, kv, pages, results, row, scale, total_q, batch,
                PIECES, FEW, ONCE, SHORT, MANY, HEADS, CKV, KPE, VECTORS,
            )  # fmt: skip
            row += tl.num_programs(0)


@triton.jit
def find_and_attend(
    queries, ckv, kpe, qo, kv, pages, results, row, scale, total_q, batch,
    PIECES: tl.constexpr, FEW: tl.constexpr, ONCE: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr,
    HEADS: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """Compute a row if it is one of those, see `is_short`."""
    request, q_start, q_end, kv_start, kv_end = find_row(qo, kv, batch, row)
    q_end = tl.where(request < batch, q_end, total_q)
    kv_len = tl.maximum(kv_end - kv_start, 0)
    sound = tl.where(pages[3] > 0, existing_keys(kv_start, kv_len, pages[2]), 0)
    # Row pointers that fall may lead to a request that the row is not in.
    if is_short(q_end - q_start, sound, SHORT, MANY) & (q_start <= row) & (row < q_end):
        sees = tl.minimum(tl.maximum(kv_len - (q_end - row) + 1, 0), kv_len)
        end = tl.minimum(sees, sound).to(tl.int32)
        attend_row(
            queries, ckv, kpe, pages, results, row.to(tl.int64), kv_start, sees, end, scale,
            PIECES, FEW, ONCE, HEADS, CKV, KPE, VECTORS,
        )  # fmt: skip


@triton.jit
def attend_row(
    queries, ckv, kpe, pages, results, row, kv_start, sees, end, scale,
    PIECES: tl.constexpr, FEW: tl.constexpr, ONCE: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr,
    KPE: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """One row over its first `end` keys, in the smallest tile that takes them; NaN if it sees more."""
    indices = (pages[0] + kv_start * pages[1], pages[1], pages[3])
    if end <= FEW:
        _attend_once(queries, ckv, kpe, indices, results, row, sees, end, scale, FEW, PIECES, HEADS, CKV, KPE, VECTORS)
    elif end <= ONCE:
        _attend_once(queries, ckv, kpe, indices, results, row, sees, end, scale, ONCE, PIECES, HEADS, CKV, KPE, VECTORS)
    else:
        head = tl.arange(0, HEADS).to(tl.int64)
        m, total, acc, exist = attend(
            queries[0], queries[1], ckv, kpe, indices, row + head * 0, head >= 0, end + head.to(tl.int32) * 0,
            0, end, scale, ONCE, 2, PIECES, HEADS, CKV, KPE, VECTORS,
        )  # fmt: skip
        total = tl.where(exist & (sees <= end), total, float("nan"))
        store_rows(results[0], results[1], m, total, acc, row + head * 0, head >= 0, HEADS, CKV, VECTORS)


@triton.jit
def _attend_once(
    queries, ckv, kpe, indices, results, row, sees, end, scale,
    KEYS: tl.constexpr, PIECES: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr,
    VECTORS: tl.constexpr,
):  # fmt: skip
    """One row over its first `end` keys, at most KEYS; NaN if it sees others, or one of them has no page."""
    WIDTH: tl.constexpr = CKV // PIECES
    head = tl.arange(0, HEADS).to(tl.int64)
    nth = tl.arange(0, KEYS)
    page = page_id(tl.load(indices[0] + nth * indices[1], mask=nth < end, other=-1))
    exists = page < indices[2].to(tl.uint32)
    q_nope, q_pe = queries
    acc = ()
    for _ in tl.static_range(PIECES):
        acc = acc + (tl.zeros([HEADS, WIDTH], tl.float32),)  # noqa: RUF005 - Triton has no unpacking
    m = tl.full([HEADS], -float("inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    # One round, but as a loop: only there does Triton copy rows straight to shared memory, and once for both products.
    for first in tl.range(0, tl.maximum(end, 1), KEYS, num_stages=2):
        # Queries take the same way; it leads through registers for what does not change from round to round.
        here = (head + first < HEADS)[:, None]
        qp = tl.load(elements(q_pe[0] + row * q_pe[1], head * q_pe[2], q_pe[3], KPE, VECTORS), mask=here, other=0.0)
        qn = ()
        for i in tl.static_range(PIECES):
            base = q_nope[0] + row * q_nope[1] + i * WIDTH * q_nope[3]
            places = elements(base, head * q_nope[2], q_nope[3], WIDTH, VECTORS)
            qn = qn + (tl.load(places, mask=here, other=0.0),)  # noqa: RUF005
        wanted = (exists & (first + nth < end))[:, None]
        kp = tl.load(key_places(kpe, page, 0, KPE, VECTORS), mask=wanted, other=0.0)
        k = ()
        for i in tl.static_range(PIECES):
            places = key_places(ckv, page, i * WIDTH, WIDTH, VECTORS)
            k = k + (tl.load(places, mask=wanted, other=0.0),)  # noqa: RUF005
        x = tl.dot(qp, tl.trans(kp)) * scale
        for i in tl.static_range(PIECES):
            x += tl.dot(qn[i], tl.trans(k[i])) * scale
        # -Inf would only get weight 0.
        x = tl.where(tl.abs(x) < float("inf"), x, float("nan"))
        x = tl.where((first + nth < end)[None, :], x, -float("inf"))
        m = tl.max(x, 1)
        p = tl.exp2(x - tl.where(m == -float("inf"), 0.0, m)[:, None])
        total = tl.sum(p, 1)
        p = p.to(kp.dtype)
        weighted = ()
        for i in tl.static_range(PIECES):
            weighted = weighted + (tl.dot(p, k[i]),)  # noqa: RUF005
        acc = weighted
    # A row without keys has total = 0.
    total = tl.where(sees > tl.sum(exists.to(tl.int32), 0), float("nan"), total)
    output, lse = results
    tl.store(lse[0] + row * lse[1] + head * lse[2], m + tl.log2(total))
    share = tl.where(total == 0, 0.0, 1 / total)
    for i in tl.static_range(PIECES):
        place = elements(
            output[0] + row * output[1] + i * WIDTH * output[3], head * output[2], output[3], WIDTH, VECTORS
        )
        tl.store(place, (acc[i] * share[:, None]).to(output[0].dtype.element_ty))
