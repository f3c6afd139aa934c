"""One tile of queries over a run of keys: gather, scores, online softmax in base 2, weighted sum, results.

Operands come as tuples (pointer, strides..., ): q_nope and q_pe (pointer, row, head, dim), ckv and kpe (pointer, page,
dim), pages (pointer to the page of the request's first key, step, number of pages in the cache).
"""

import triton
import triton.language as tl


@triton.jit
def attend(
    q_nope, q_pe, ckv, kpe, pages, query, live, sees, start, end, scale,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PIECES: tl.constexpr, HEADS: tl.constexpr, CKV: tl.constexpr,
    KPE: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """Attention of the rows over keys start .. end, of which there is at least one.

    Row r is head r % HEADS of `query[r]`, an int64 row of the operands; it sees the keys below `sees[r]`. Returns per
    row the maximum m of the scores, total = sum of 2^(score - m) and acc = sum of 2^(score - m) * ckv, unnormalised and
    in PIECES of CKV // PIECES columns; and whether every page was inside the cache. A key that holds NaN or Inf makes
    `total` NaN in every row that sees it, but may spoil acc in the others.

    Why in pieces: a warp copies a few hundred bytes of a row at a time. The narrower a piece, the fewer rows each
    thread has a hand in, and so the fewer page ids it must fetch and keep.
    """
    ROWS: tl.constexpr = query.shape[0]
    WIDTH: tl.constexpr = CKV // PIECES
    head = (tl.arange(0, ROWS) % HEADS).to(tl.int64)
    nth = tl.arange(0, BLOCK_N)
    whole = tl.min(sees, 0)
    qp = load_rows(q_pe[0], query * q_pe[1] + head * q_pe[2], q_pe[3], live, KPE, VECTORS)
    q_row = query * q_nope[1] + head * q_nope[2]
    qn = ()
    acc = ()
    for i in tl.static_range(PIECES):
        piece = load_rows(q_nope[0] + i * WIDTH * q_nope[3], q_row, q_nope[3], live, WIDTH, VECTORS)
        qn = qn + (piece,)  # noqa: RUF005 - Triton has no unpacking
        acc = acc + (tl.zeros([ROWS, WIDTH], tl.float32),)  # noqa: RUF005
    m = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    highest = tl.zeros([BLOCK_N], tl.uint32)
    # Page ids are fetched a round ahead of the rows: gathers then wait for one trip to memory, not for two.
    ahead = load_page(pages, tl.minimum(start + nth, end - 1))
    # At least one round, and the compiler can tell: it would serialise wgmma if acc could come from elsewhere (C7515).
    for first in tl.range(start, tl.maximum(end, start + 1), BLOCK_N, num_stages=STAGES):
        page = ahead
        # Past the end comes the last key again: no mask on the loads, and no NaN that nobody sees.
        ahead = load_page(pages, tl.minimum(first + BLOCK_N + nth, end - 1))
        highest = tl.maximum(highest, page)
        page = tl.minimum(page, (pages[2] - 1).to(tl.uint32))
        kp = key_rows(kpe, page, 0, KPE, VECTORS)
        k = ()
        for i in tl.static_range(PIECES):
            k = k + (key_rows(ckv, page, i * WIDTH, WIDTH, VECTORS),)  # noqa: RUF005
        # Scaled apart: chained into one accumulator, the products would share the layout of the first, see below.
        x = tl.dot(qp, tl.trans(kp)) * scale
        for i in tl.static_range(PIECES):
            x += tl.dot(qn[i], tl.trans(k[i])) * scale
        # On Hopper this branch does more than save work: without it Triton sees chained products and gives each
        # warpgroup all of the keys in the first, twice the work (`warpsPerCTA = [8, 1]`, see tests/test_compile.py).
        if first + BLOCK_N > whole:
            # -Inf would only get weight 0, and 0 * Inf spoils the rows that do not see the key.
            x = tl.where(tl.abs(x) < float("inf"), x, float("nan"))
            x = tl.where((first + nth)[None, :] < tl.minimum(sees, end)[:, None], x, -float("inf"))
        m_new = tl.maximum(m, tl.max(x, 1))
        # A row that has seen no key yet would shift by -inf - -inf.
        shift = tl.where(m_new == -float("inf"), 0.0, m_new)
        p = tl.exp2(x - shift[:, None])
        alpha = tl.exp2(m - shift)
        total = total * alpha + tl.sum(p, 1)
        m = m_new
        p = p.to(kp.dtype)
        weighted = ()
        for i in tl.static_range(PIECES):
            weighted = weighted + (tl.dot(p, k[i], acc[i] * alpha[:, None]),)  # noqa: RUF005
        acc = weighted
    # A row all of whose scores are -inf did see keys, and one of them held an infinity.
    total = tl.where((m == -float("inf")) & (sees > start), float("nan"), total)
    return m, total, acc, tl.max(highest.to(tl.int64), 0) < pages[2]


@triton.jit
def store_rows(output, lse, m, total, acc, query, live, HEADS: tl.constexpr, CKV: tl.constexpr, VECTORS: tl.constexpr):
    """Normalise and write what `attend` returned; a row without keys has total = 0."""
    WIDTH: tl.constexpr = CKV // len(acc)
    head = (tl.arange(0, total.shape[0]) % HEADS).to(tl.int64)
    value_lse = tl.where(total == 0, -float("inf"), m + tl.log2(total))
    tl.store(lse[0] + query * lse[1] + head * lse[2], value_lse, mask=live)
    # The reciprocal costs half an ulp of float32; an exact division of 128 elements per thread was half of the code.
    share = tl.where(total == 0, 0.0, 1 / total)
    place = query * output[1] + head * output[2]
    for i in tl.static_range(len(acc)):
        row = elements(output[0] + i * WIDTH * output[3], place, output[3], WIDTH, VECTORS)
        tl.store(row, (acc[i] * share[:, None]).to(output[0].dtype.element_ty), mask=live[:, None])


@triton.jit
def first_unsound_key(
    ckv, kpe, pages, start, end, COUNT: tl.constexpr, CKV: tl.constexpr, KPE: tl.constexpr, VECTORS: tl.constexpr
):
    """The first key of start .. end that holds NaN or Inf or whose page is outside the cache; `end` if none.

    Looks at no more than COUNT keys.
    """
    key = start + tl.arange(0, COUNT)
    wanted = key < end
    page = load_page(pages, tl.minimum(key, end - 1))
    outside = page >= pages[2]
    page = tl.minimum(page, (pages[2] - 1).to(tl.uint32))
    content = count_unsound(key_rows(ckv, page, 0, CKV, VECTORS))
    rotary = count_unsound(key_rows(kpe, page, 0, KPE, VECTORS))
    unsound = wanted & (((content + rotary) > 0) | outside)
    return tl.min(tl.where(unsound, key, end), 0)


@triton.jit
def count_unsound(values):
    """How many elements of each row are NaN or Inf."""
    return tl.sum((tl.abs(values.to(tl.float32)) < float("inf")).to(tl.int32) ^ 1, 1)


@triton.jit
def load_page(pages, key):
    """The page of each key."""
    return page_id(tl.load(pages[0] + key * pages[1]))


@triton.jit
def page_id(page):
    """As unsigned 32 bits; what is no int32 becomes 2^32 - 1, which no cache holds."""
    if page.dtype == tl.int64:
        page = tl.where((page >= 0) & (page < 2**31), page, -1)
    return page.to(tl.uint32)


@triton.jit
def key_rows(cache, page, column, WIDTH: tl.constexpr, VECTORS: tl.constexpr):
    """[len(page), WIDTH] elements of a cache, from `column` on."""
    return tl.load(key_places(cache, page, column, WIDTH, VECTORS))


@triton.jit
def key_places(cache, page, column, WIDTH: tl.constexpr, VECTORS: tl.constexpr):
    """Where they are."""
    if VECTORS:
        # 32 by 32 bits to 64 is one instruction, 64 by 64 are several: the host checks that the stride fits.
        offset = page.to(tl.int32).to(tl.int64) * cache[1].to(tl.int32).to(tl.int64)
    else:
        offset = page.to(tl.int64) * cache[1]
    return elements(cache[0] + column * cache[2], offset, cache[2], WIDTH, VECTORS)


@triton.jit
def load_rows(base, offset, step, mask, WIDTH: tl.constexpr, VECTORS: tl.constexpr):
    """[len(offset), WIDTH] elements, zeros in the rows where `mask` is off."""
    return tl.load(elements(base, offset, step, WIDTH, VECTORS), mask=mask[:, None], other=0.0)


@triton.jit
def elements(base, offset, step, WIDTH: tl.constexpr, VECTORS: tl.constexpr):
    """[len(offset), WIDTH] pointers, one row per offset."""
    dim = tl.arange(0, WIDTH)
    if VECTORS:
        return tl.multiple_of(base + offset, [16])[:, None] + dim[None, :]
    else:
        return (base + offset)[:, None] + dim[None, :] * step
