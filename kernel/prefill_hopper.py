"""The Gluon kernel for compute capability 9.0: one tile of 64 rows over a run of keys, by three warpgroups.

A block of keys is 64 rows of the cache. Blocks come in pairs, even and odd, each in its own buffers. `left` scores the
even block and owns the left half of the output's columns, `right` scores the odd block and owns the right half, so
that one's softmax runs while the other's products keep the matrix units busy. Each weighs both blocks: weights cross
through shared memory, in the place of the block's rotary keys, which nobody needs once the block is scored.

                 gather                     left                              right
                 (copies rows)              (even block, columns 0 .. 255)    (odd block, columns 256 .. 511)
                                            even scores
    filled   ->  even_l, even_rp            softmax                           odd scores
                 odd_lp, odd_r              even weights  -- weights -->      even weights * even_r
    emptied  <-  each by its last reader    even weights * even_l             softmax
                                            odd weights * odd_l  <-- weights --  odd weights
                                            next even scores                  odd weights * odd_r

The running maximum goes round with the weights: left raises it by the even block and hands it to right, which raises
it by the odd block and hands it back.

A run of an odd number of blocks, three at least, ends with an even block: the left then hands over once more, and
nothing comes back.

A key with NaN or Inf would reach the rows of the tile that do not see it as 0 * NaN. There are three keys at most that
some rows see and others do not; gather looks at them while the first pair is at work. A tile that met a bad one is done
again up to it, and rows that see it are NaN.

Who reads a buffer last: even_l left, even_r and even_p right, odd_l and odd_p left, odd_r right, the queries right, or
left where an even block is left over: then right gives them back once it has its weights.

Why it is written as it is:

- Operands in shared memory are [1, 64, n], indexed by a zero that the compiler cannot see through: it would otherwise
  keep some seventy wgmma descriptors over the loop, and spill.
- An accumulator that is in flight over the edge of a loop serialises wgmma (C7514): each round ends with a wait.
- The next scores are multiplied whether or not there is a next pair, on whatever is in the buffers: a branch there
  would serialise wgmma too. Nobody looks at the result.
- What is rare stays out of the loop over pairs: a branch there of some hundred instructions cost 10 %.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .contract import CKV_DIM, KPE_DIM, NUM_HEADS
from .found import LANES, choose, look, look_at_one, pick, row_pointers, short_rows
from .listing import HEADER, ITEM, ITEM_COUNT, NAN_KEY, ROW_COUNT
from .lookup import first_slot

# Registers per thread of the two consumers; what is left goes to the gatherer.
REGISTERS = gl.constexpr(216)

# Names of Triton 3.6, and what later versions call the same.
_barrier = getattr(gl, "barrier", None) or gl.thread_barrier
_copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared

BLOCK = gl.constexpr(64)
HALF = gl.constexpr(CKV_DIM // 2)
ROTARY = gl.constexpr(KPE_DIM)
HEADS = gl.constexpr(NUM_HEADS)

SCORES = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16]))
SUMS = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 256, 16]))
ROWS = gl.constexpr(gl.SliceLayout(1, SCORES.value))
KEYS = gl.constexpr(gl.SliceLayout(0, SCORES.value))
# Eight lanes copy 128 bytes of a row.
COPY = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
# A warp looks at a row.
LOOK = gl.constexpr(gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0]))
# One for each thread, or the same 32 for each warp.
FLAG = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
# Each thread holds 8 columns in a row: what the accumulator's layout becomes by shuffles inside groups of four lanes.
STORE = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [8, 0], [0, 32], [0, 64], [0, 128]],
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 256],
    )
)


@gluon.jit(do_not_specialize=list(range(28)))
def prefill_hopper(
    q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, output, lse, scratch, scratch_lse, items,
    q_nope_row: gl.int64, q_nope_head: gl.int64, q_pe_row: gl.int64, q_pe_head: gl.int64,
    ckv_page: gl.int32, kpe_page: gl.int32,
    output_row: gl.int64, output_head: gl.int64, lse_row: gl.int64, lse_head: gl.int64,
    scale: gl.float32, num_pages: gl.int32,
    qo_step: gl.int64, kv_step: gl.int64, total_q: gl.int64, batch: gl.int32, num_kv_indices: gl.int64,
    POSITIVE: gl.constexpr, ITEMS: gl.constexpr, BESIDE: gl.constexpr,
    CHUNK: gl.constexpr, SHORT: gl.constexpr, MANY: gl.constexpr,
):  # fmt: skip
    """Persistent: each program takes its share of the items.

    items     int32; the list that `schedule` made or its header alone, see listing.py. From NAN_KEY on there is room
              for a rotary key, which becomes that of all pages outside the cache
    POSITIVE  scale > 0: then scores are compared before they are scaled, and scaled where they become exponents
    ITEMS     "listed", or each program finds its own, see found.py: "found" those of few requests, or of a single "one"
    BESIDE    it runs beside `short`, which has seen the end of what came before, and ends after it
    """
    # Waits for the launch before, as wait_for_launch in early.py does.
    if not BESIDE:
        _control("griddepcontrol.wait")
        # Where keys are so few, there is a short request.
        _let_rest_begin((batch > 1) & (num_kv_indices <= SHORT * batch))
    # What tells which items there are is under way while the barriers are made.
    if ITEMS == "listed":
        known = (gl.load(items + ITEM_COUNT), gl.load(items + ROW_COUNT))
    elif ITEMS == "one":
        known = (gl.load(qo_indptr), gl.load(qo_indptr + qo_step), gl.load(kv_indptr), gl.load(kv_indptr + kv_step))
    else:
        known = row_pointers((qo_indptr, qo_step), (kv_indptr, kv_step), gl.arange(0, LANES, FLAG), batch)
    DTYPE: gl.constexpr = ckv_cache.dtype.element_ty
    queries = _rows_in_shared_memory(DTYPE)
    even = _rows_in_shared_memory(DTYPE)
    odd = _rows_in_shared_memory(DTYPE)
    LINEAR: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    # What goes round between the consumers, and what gather tells them.
    maxima = gl.allocate_shared_memory(gl.float32, [2, BLOCK], LINEAR)
    totals = gl.allocate_shared_memory(gl.float32, [2, BLOCK], LINEAR)

    # One allocation per barrier and word: an index into a common one costs a barrier of the warpgroup.
    told = (_word(), _word(), _word(), _word(), _word(), _word(), _word())
    filled = (_mbarrier(128), _mbarrier(128), _mbarrier(128), _mbarrier(128))
    emptied = (_mbarrier(1), _mbarrier(1), _mbarrier(1), _mbarrier(1))
    query_filled = _mbarrier(128)
    query_emptied = _mbarrier(1)
    item_told = _mbarrier(1)
    weights_ready = (_mbarrier(1), _mbarrier(1))
    totals_ready = (_mbarrier(1), _mbarrier(1))
    nowhere = (items + NAN_KEY).to(gl.pointer_type(DTYPE), bitcast=True)
    rotary_dim = gl.arange(0, ROTARY, FLAG)
    gl.store(nowhere + rotary_dim, (rotary_dim.to(gl.float32) * float("nan")).to(DTYPE))
    fence_async_shared()
    _barrier()

    copies = (filled, emptied, query_filled, query_emptied, told, item_told)
    exchange = (maxima, weights_ready, totals, totals_ready)
    q_from = (q_nope, q_nope_row, q_nope_head, q_pe, q_pe_row, q_pe_head)
    k_from = (ckv_cache, ckv_page, kpe_cache, kpe_page, kv_indices, num_pages, nowhere)
    requests = (batch, total_q, num_kv_indices)
    results = (output, output_row, output_head, lse, lse_row, lse_head, scratch, scratch_lse)
    gl.warp_specialize(
        [
            (_gather, (
                items, known, requests, q_from, k_from, queries, even, odd, copies, ITEMS, BESIDE, CHUNK, SHORT, MANY
            )),
            (_left, (results, queries, even, odd, copies, exchange, scale, POSITIVE)),
            (_right, (results, queries, even, odd, copies, exchange, scale, POSITIVE)),
        ],
        [4, 4],
        [REGISTERS, REGISTERS],
    )  # fmt: skip


@gluon.jit
def _control(INSTRUCTION: gl.constexpr):
    gl.inline_asm_elementwise(INSTRUCTION + "; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _rows_in_shared_memory(DTYPE: gl.constexpr):
    """Buffers for a block of 64 rows: the left and the right half of the content, the rotary part."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    left = gl.allocate_shared_memory(DTYPE, [1, BLOCK, HALF], LAYOUT)
    right = gl.allocate_shared_memory(DTYPE, [1, BLOCK, HALF], LAYOUT)
    rotary = gl.allocate_shared_memory(DTYPE, [1, BLOCK, ROTARY], LAYOUT)
    return left, right, rotary


@gluon.jit
def _mbarrier(count: gl.constexpr):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=count)
    return bar


@gluon.jit
def _word():
    return gl.allocate_shared_memory(gl.int32, [1], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit
def _turn(nth, total):
    """The number of this program's nth item. Every other round runs backwards, as items get shorter, and so does a last
    one that not all have a part in: those who had the longest items have none then.
    """
    programs = gl.num_programs(0)
    place = gl.program_id(0)
    backwards = (nth % 2 == 1) | ((nth > 0) & ((nth + 1) * programs > total))
    return nth * programs + gl.where(backwards, programs - 1 - place, place)


@gluon.jit
def _listed_item(items, place):
    """An item of the list: row, count, least, start, end, kv_start, slot, see `store_item` in listing.py."""
    at = items + (HEADER + place).to(gl.int64) * ITEM
    return (
        gl.load(at), gl.load(at + 1), gl.load(at + 2),
        gl.load(at + 3), gl.load(at + 4), gl.load(at + 5), gl.load(at + 6),
    )  # fmt: skip


@gluon.jit
def _work(known, requests, ITEMS: gl.constexpr, CHUNK: gl.constexpr, SHORT: gl.constexpr, MANY: gl.constexpr):
    """What there is to do for each request, see found.py, how many items there are, and how many rows for `short`."""
    batch, total_q, num_kv_indices = requests
    QUERIES: gl.constexpr = BLOCK // HEADS
    if ITEMS == "one":
        work, padding = look_at_one(known, total_q, num_kv_indices, QUERIES, CHUNK, SHORT, MANY)
        return work, work[5] * work[6], short_rows(work) + padding
    else:
        lane = gl.arange(0, LANES, FLAG)
        work = look(known, lane, batch, total_q, num_kv_indices, QUERIES, CHUNK, SHORT, MANY)
        return work, gl.sum(work[5] * work[6], 0), gl.sum(short_rows(work), 0)


@gluon.jit
def _found_item(work, place, total, num_kv_indices, ITEMS: gl.constexpr, CHUNK: gl.constexpr):
    """As `_listed_item`: those of a request from its last tile on."""
    QUERIES: gl.constexpr = BLOCK // HEADS
    row, q_len, kv_start, kv_len, sound, tiles, chunks, length = work
    nth = place
    if ITEMS == "found":
        lane = gl.arange(0, LANES, FLAG)
        chosen, nth = choose(work, lane, place, total, gl.num_programs(0), num_kv_indices, QUERIES)
        row, q_len = pick(row, chosen), pick(q_len, chosen)
        kv_start, kv_len, sound = pick(kv_start, chosen), pick(kv_len, chosen), pick(sound, chosen)
        tiles, chunks, length = pick(tiles, chosen), pick(chunks, chosen), pick(length, chosen)

    split = chunks > 1
    # Tiles over the same chunk are neighbours, as they read the same keys.
    tile = gl.where(split, nth % tiles, tiles - 1 - nth)
    chunk = gl.where(split, nth // tiles, 0)
    queries = gl.minimum(q_len - QUERIES * tile, QUERIES)
    # A request may claim more keys than there are.
    least = gl.minimum(kv_len - q_len, num_kv_indices.to(gl.int32)) + QUERIES * tile + 1
    start = chunk * length
    end = gl.minimum(least - 1 + queries, gl.where(split, start + length, sound))
    count = gl.where((end > start) | (chunks == 1), queries, 0)
    slot = gl.where(split, first_slot(kv_start, CHUNK) + chunk * q_len + QUERIES * tile, -1)
    return row + QUERIES * tile, count, least, start, gl.maximum(end, 0), kv_start, slot


@gluon.jit
def _pairs(start, end):
    """Pairs of blocks in a run, one at least, as the loop over them must have a round; and whether an even block is
    left after them.
    """
    blocks = gl.cdiv(end - start, BLOCK)
    pairs = gl.maximum(blocks // 2, 1)
    return pairs, blocks > 2 * pairs


@gluon.jit
def _gather(
    items, known, requests, q_from, k_from, queries, even, odd, copies,
    ITEMS: gl.constexpr, BESIDE: gl.constexpr, CHUNK: gl.constexpr, SHORT: gl.constexpr, MANY: gl.constexpr,
):  # fmt: skip
    """Copies the queries of each tile and its keys, row by row; page ids travel a pair ahead of the rows.

    `limit` is where the keys of a tile that is done again end.
    """
    filled, emptied, query_filled, query_emptied, told, item_told = copies
    even_phase = 1
    odd_phase = 1
    query_phase = 1
    nth = 0
    limit = 2**30
    if ITEMS == "listed":
        total, for_short = known
    else:
        work, total, for_short = _work(known, requests, ITEMS, CHUNK, SHORT, MANY)
    if not BESIDE:
        _let_rest_begin(for_short)
    place = _turn(0, total)
    while place < total:
        if ITEMS == "listed":
            row, count, least, start, end, kv_start, slot = _listed_item(items, place)
        else:
            row, count, least, start, end, kv_start, slot = _found_item(work, place, total, requests[2], ITEMS, CHUNK)
        if count > 0:
            whole_end = end
            end = gl.minimum(end, limit)
            even_page, odd_page = _pages(k_from, kv_start, start, end, 0)
            mbarrier.wait(query_emptied, query_phase)
            _tell(told, item_told, count, row, least, start, end, whole_end, slot)
            _copy_queries(q_from, queries, row, count)
            async_copy.mbarrier_arrive(query_filled, increment_count=False)
            query_phase ^= 1
            edge = gl.maximum(least, start)
            sound_end = end
            pairs, one_more = _pairs(start, end)
            for i in range(pairs + one_more.to(gl.int32)):
                even_key, even_rotary = _key(k_from, even_page)
                odd_key, odd_rotary = _key(k_from, odd_page)
                even_page, odd_page = _pages(k_from, kv_start, start, end, i + 1)
                mbarrier.wait(emptied[0], even_phase)
                _copy(even[0].index(0), even_key, HALF, 0)
                async_copy.mbarrier_arrive(filled[0], increment_count=False)
                mbarrier.wait(emptied[1], even_phase)
                _copy(even[1].index(0), even_key, HALF, HALF)
                _copy(even[2].index(0), even_rotary, ROTARY, 0)
                async_copy.mbarrier_arrive(filled[1], increment_count=False)
                even_phase ^= 1
                if i < pairs:
                    mbarrier.wait(emptied[3], odd_phase)
                    _copy(odd[1].index(0), odd_key, HALF, HALF)
                    async_copy.mbarrier_arrive(filled[3], increment_count=False)
                    mbarrier.wait(emptied[2], odd_phase)
                    _copy(odd[0].index(0), odd_key, HALF, 0)
                    _copy(odd[2].index(0), odd_rotary, ROTARY, 0)
                    async_copy.mbarrier_arrive(filled[2], increment_count=False)
                    odd_phase ^= 1
                if (i == 0) & (edge < end):
                    # Nobody waits for it here: all buffers are full.
                    sound_end = _first_unsound(k_from, kv_start, edge, end)
            # A tile that met a bad key is done again, without that key.
            again = sound_end < end
            limit = gl.where(again, sound_end, 2**30)
            nth -= again.to(gl.int32)
        nth += 1
        place = _turn(nth, total)
    if BESIDE:
        _control("griddepcontrol.wait")
    else:
        _let_rest_begin(1)
    mbarrier.wait(query_emptied, query_phase)
    _tell(told, item_told, 0, 0, 0, 0, 0, 0, 0)


@gluon.jit
def _let_rest_begin(rows):
    """Let the next launch begin if it has rows to compute beside this one.

    Else it begins at the end, as it makes the first round of this one 3 to 5 us longer.
    """
    if rows > 0:
        _control("griddepcontrol.launch_dependents")


@gluon.jit
def _tell(told, item_told, count, row, least, start, end, whole_end, slot):
    """Hand an item to the consumers, with where its run of keys ends and where it should; `count` 0 is no item."""
    values = (count, row, least, start, end, whole_end, slot)
    for i in gl.static_range(len(values)):
        told[i].store(gl.full([1], values[i], gl.int32, FLAG))
    mbarrier.arrive(item_told, count=1)


@gluon.jit
def _await_count(copies, phase):
    """How many queries the next item has; 0 when there is none."""
    _filled, _emptied, _query_filled, _query_emptied, told, item_told = copies
    mbarrier.wait(item_told, phase)
    return _told(told, 0)


@gluon.jit
def _told(told, nth: gl.constexpr):
    return gl.max(told[nth].load(FLAG), 0)


@gluon.jit
def _await_queries(copies, phase):
    """The rest of what is told of an item, once its queries are there; what a consumer starts a tile with: the maximum,
    denominator and weighted sum of no keys; and how many keys each row sees.
    """
    _filled, _emptied, query_filled, _query_emptied, told, _item_told = copies
    least = _told(told, 2)
    item = (_told(told, 1), least, _told(told, 3), _told(told, 4), _told(told, 5), _told(told, 6))
    m = gl.full([BLOCK], -float("inf"), gl.float32, ROWS)
    total = gl.zeros([BLOCK], gl.float32, ROWS)
    acc = gl.zeros([BLOCK, HALF], gl.float32, SUMS)
    sees = least + gl.arange(0, BLOCK, ROWS) // HEADS
    mbarrier.wait(query_filled, phase)
    fence_async_shared()
    return item, m, total, acc, sees


@gluon.jit
def _copy_queries(q_from, queries, row, count):
    q_nope, q_nope_row, q_nope_head, q_pe, q_pe_row, q_pe_head = q_from
    nth_row = gl.arange(0, BLOCK, gl.SliceLayout(1, COPY))
    # Rows past the last query repeat the first one.
    query = (row + gl.where(nth_row < count * HEADS, nth_row // HEADS, 0)).to(gl.int64)
    head = (nth_row % HEADS).to(gl.int64)
    content = gl.multiple_of(q_nope + query * q_nope_row + head * q_nope_head, [16])
    rotary = gl.multiple_of(q_pe + query * q_pe_row + head * q_pe_head, [16])
    _copy(queries[0].index(0), content, HALF, 0)
    _copy(queries[1].index(0), content, HALF, HALF)
    _copy(queries[2].index(0), rotary, ROTARY, 0)


@gluon.jit
def _pages(k_from, kv_start, start, end, nth_pair):
    """The pages of a pair of blocks. Past the end comes the last key again: no NaN that nobody sees."""
    last = gl.maximum(end - 1, start)
    key = start + nth_pair * 2 * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, COPY))
    return _page(k_from, kv_start, gl.minimum(key, last)), _page(k_from, kv_start, gl.minimum(key + BLOCK, last))


@gluon.jit
def _page(k_from, kv_start, key):
    """The page of each key as unsigned 32 bits; what is no int32 becomes 2^32 - 1, which no cache holds."""
    _ckv_cache, _ckv_page, _kpe_cache, _kpe_page, kv_indices, _num_pages, _nowhere = k_from
    page = gl.load(kv_indices + kv_start.to(gl.int64) + key)
    if page.dtype == gl.int64:
        page = gl.where((page >= 0) & (page < 2**31), page, -1)
    return page.to(gl.uint32)


@gluon.jit
def _first_unsound(k_from, kv_start, first, end):
    """The first key of first .. end that holds NaN or Inf or whose page is outside the cache; `end` if none.

    Looks at four keys at most.
    """
    key = first + gl.arange(0, 4, gl.SliceLayout(1, LOOK))
    content, rotary = _key(k_from, _page(k_from, kv_start, gl.minimum(key, end - 1)))
    unsound = _largest(rotary, ROTARY)
    for i in gl.static_range(2):
        unsound = gl.maximum(unsound, _largest(content + i * HALF, HALF))
    return gl.min(gl.where(unsound < float("inf"), end, gl.minimum(key, end)), 0)


@gluon.jit
def _largest(rows, WIDTH: gl.constexpr):
    """The largest magnitude in each row, Inf where there is a NaN."""
    value = gl.abs(gl.load(rows[:, None] + gl.arange(0, WIDTH, gl.SliceLayout(0, LOOK))[None, :]).to(gl.float32))
    return gl.max(gl.where(value < float("inf"), value, float("inf")), 1)


@gluon.jit
def _key(k_from, page):
    """Where the content and the rotary part of each key begin; a page outside the cache has a rotary part of NaN."""
    ckv_cache, ckv_page, kpe_cache, kpe_page, _kv_indices, num_pages, nowhere = k_from
    inside = page < num_pages.to(gl.uint32)
    # 32 by 32 bits to 64 is one instruction.
    safe = gl.minimum(page, (num_pages - 1).to(gl.uint32)).to(gl.int32).to(gl.int64)
    content = gl.multiple_of(ckv_cache + safe * ckv_page.to(gl.int64), [16])
    rotary = kpe_cache + safe * kpe_page.to(gl.int64)
    return content, gl.multiple_of(gl.where(inside, rotary, nowhere), [16])


@gluon.jit
def _copy(buffer, rows, WIDTH: gl.constexpr, COLUMN: gl.constexpr):
    """Copy WIDTH elements of each row from COLUMN on into [64, WIDTH] of shared memory, asynchronously.

    `rows` are known to the compiler as multiples of 16 bytes.
    """
    dim = gl.arange(0, WIDTH, gl.SliceLayout(0, COPY))
    _copy_async(buffer, rows[:, None] + (COLUMN + dim)[None, :])


@gluon.jit
def _zero(x):
    """0, in a way that the compiler does not know; `x` ties it to a round of a loop."""
    return gl.inline_asm_elementwise("mov.b32 $0, 0; // $1", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _left(results, queries, even, odd, copies, exchange, scale, POSITIVE: gl.constexpr):
    """The consumer that scores even blocks and weighs the left half of the columns."""
    filled, emptied, _query_filled, _query_emptied, _told_at, _item_told = copies
    maxima, weights_ready, _totals, _totals_ready = exchange
    odd_l = odd[0].index(0)
    odd_weights = odd[2].index(0)
    even_phase = 0
    odd_phase = 0
    tile_phase = 0
    count = _await_count(copies, 0)
    while count > 0:
        item, m, total, acc, sees = _await_queries(copies, tile_phase)
        row, least, start, end, _whole_end, _slot = item
        zero = _zero(row)
        q_rotary = queries[2].index(zero).load(gl.DotOperandLayout(0, SCORES, 2))
        x = _even_scores_half(queries, even, filled, even_phase, True, zero)
        x = _even_scores_rest(x, queries, q_rotary, even, filled, even_phase, True, zero)
        x = warpgroup_mma_wait(0, deps=[x])
        pairs, one_more = _pairs(start, end)
        for i in range(pairs):
            zero = _zero(i)
            x = _mask(x, scale, start + i * 2 * BLOCK, least, end, sees, POSITIVE)
            mine, m_even, total, acc = _weigh_even(x, m, total, acc, even, exchange, scale, POSITIVE, zero)
            product = warpgroup_mma(mine, even[0].index(zero), acc, is_async=True)
            mbarrier.wait(weights_ready[1], odd_phase)
            m = maxima.index(1).load(ROWS)
            acc = warpgroup_mma_wait(0, deps=[product])
            mbarrier.arrive(emptied[0], count=1)
            total, acc = _rescale(total, acc, m_even, m)
            product = warpgroup_mma(odd_weights, odd_l, acc, is_async=True)
            even_phase ^= 1
            odd_phase ^= 1
            more = (i + 1 < pairs) | one_more
            x = _even_scores_half(queries, even, filled, even_phase, more, zero)
            acc = warpgroup_mma_wait(1, deps=[product])
            mbarrier.arrive(emptied[2], count=1)
            x = _even_scores_rest(x, queries, q_rotary, even, filled, even_phase, more, zero)
            x = warpgroup_mma_wait(0, deps=[x])
        if one_more:
            zero = _zero(pairs)
            x = _mask(x, scale, start + pairs * 2 * BLOCK, least, end, sees, POSITIVE)
            mine, m, total, acc = _weigh_even(x, m, total, acc, even, exchange, scale, POSITIVE, zero)
            acc = warpgroup_mma(mine, even[0].index(zero), acc)
            mbarrier.arrive(emptied[0], count=1)
            even_phase ^= 1
        _finish(acc, total, m, item, count, sees, results, exchange, 0, tile_phase)
        tile_phase ^= 1
        count = _await_count(copies, tile_phase)


@gluon.jit
def _right(results, queries, even, odd, copies, exchange, scale, POSITIVE: gl.constexpr):
    """The consumer that scores odd blocks and weighs the right half of the columns."""
    filled, emptied, _query_filled, query_emptied, _told_at, _item_told = copies
    maxima, weights_ready, _totals, _totals_ready = exchange
    even_r = even[1].index(0)
    even_weights = even[2].index(0)
    even_phase = 0
    odd_phase = 0
    tile_phase = 0
    count = _await_count(copies, 0)
    while count > 0:
        item, m, total, acc, sees = _await_queries(copies, tile_phase)
        row, least, start, end, _whole_end, _slot = item
        q_rotary = queries[2].index(_zero(row)).load(gl.DotOperandLayout(0, SCORES, 2))
        pairs, one_more = _pairs(start, end)
        for i in range(pairs):
            zero = _zero(i)
            x = _odd_scores(queries, q_rotary, odd, filled, odd_phase, zero)
            m_even, total, acc = _await_even(m, total, acc, exchange, even_phase)
            product = warpgroup_mma(even_weights, even_r, acc, is_async=True)
            x = warpgroup_mma_wait(1, deps=[x])
            mbarrier.arrive(query_emptied, count=1, pred=(i + 1 == pairs) & (not one_more))
            x = _mask(x, scale, start + i * 2 * BLOCK + BLOCK, least, end, sees, POSITIVE)
            p, m = _weigh(x, m_even, scale, POSITIVE)
            weights = _hand_over(m, p, odd, maxima, weights_ready, 1, zero)
            acc = warpgroup_mma_wait(0, deps=[product])
            mbarrier.arrive(emptied[1], count=1)
            total, acc = _rescale(total, acc, m_even, m)
            total += gl.sum(p, 1)
            mine = gl.convert_layout(weights, gl.DotOperandLayout(0, SUMS, 2))
            acc = warpgroup_mma(mine, odd[1].index(zero), acc)
            mbarrier.arrive(emptied[3], count=1)
            even_phase ^= 1
            odd_phase ^= 1
        if one_more:
            m, total, acc = _await_even(m, total, acc, exchange, even_phase)
            mbarrier.arrive(query_emptied, count=1)
            acc = warpgroup_mma(even_weights, even_r, acc)
            mbarrier.arrive(emptied[1], count=1)
            even_phase ^= 1
        _finish(acc, total, m, item, count, sees, results, exchange, 1, tile_phase)
        tile_phase ^= 1
        count = _await_count(copies, tile_phase)


@gluon.jit
def _weigh_even(x, m, total, acc, even, exchange, scale, POSITIVE: gl.constexpr, zero):
    """On the left: weights of an even block, handed over and as an operand, the new maximum, and what was, rescaled."""
    maxima, weights_ready, _totals, _totals_ready = exchange
    p, m_even = _weigh(x, m, scale, POSITIVE)
    weights = _hand_over(m_even, p, even, maxima, weights_ready, 0, zero)
    total, acc = _rescale(total, acc, m, m_even)
    total += gl.sum(p, 1)
    return gl.convert_layout(weights, gl.DotOperandLayout(0, SUMS, 2)), m_even, total, acc


@gluon.jit
def _await_even(m, total, acc, exchange, phase):
    """On the right: the maximum that the left handed over with its weights, and what was, rescaled."""
    maxima, weights_ready, _totals, _totals_ready = exchange
    mbarrier.wait(weights_ready[0], phase)
    m_even = maxima.index(0).load(ROWS)
    total, acc = _rescale(total, acc, m, m_even)
    return m_even, total, acc


@gluon.jit
def _even_scores_half(queries, even, filled, phase, wanted, zero):
    mbarrier.wait(filled[0], phase, pred=wanted)
    fence_async_shared()
    none = gl.zeros([BLOCK, BLOCK], gl.float32, SCORES)
    return warpgroup_mma(
        queries[0].index(zero), even[0].index(zero).permute((1, 0)), none, use_acc=False, is_async=True
    )


@gluon.jit
def _even_scores_rest(x, queries, q_rotary, even, filled, phase, wanted, zero):
    mbarrier.wait(filled[1], phase, pred=wanted)
    fence_async_shared()
    x = warpgroup_mma(queries[1].index(zero), even[1].index(zero).permute((1, 0)), x, is_async=True)
    return warpgroup_mma(q_rotary, even[2].index(zero).permute((1, 0)), x, is_async=True)


@gluon.jit
def _odd_scores(queries, q_rotary, odd, filled, phase, zero):
    """Right half first: `right` empties it, so it is filled first."""
    mbarrier.wait(filled[3], phase)
    fence_async_shared()
    none = gl.zeros([BLOCK, BLOCK], gl.float32, SCORES)
    x = warpgroup_mma(queries[1].index(zero), odd[1].index(zero).permute((1, 0)), none, use_acc=False, is_async=True)
    mbarrier.wait(filled[2], phase)
    fence_async_shared()
    x = warpgroup_mma(queries[0].index(zero), odd[0].index(zero).permute((1, 0)), x, is_async=True)
    return warpgroup_mma(q_rotary, odd[2].index(zero).permute((1, 0)), x, is_async=True)


@gluon.jit
def _mask(x, scale, first, least, end, sees, POSITIVE: gl.constexpr):
    """Scores of a block from key `first` on, -inf where a row does not see the key; scaled unless POSITIVE."""
    if not POSITIVE:
        x *= scale
    if first + BLOCK > gl.minimum(least, end):
        key = first + gl.arange(0, BLOCK, KEYS)
        x = gl.where(key[None, :] < gl.minimum(sees, end)[:, None], x, -float("inf"))
    return x


@gluon.jit
def _weigh(x, m, scale, POSITIVE: gl.constexpr):
    """Weights of a block and the new maximum, which is in units of log2."""
    if POSITIVE:
        m = gl.maximum(m, gl.max(x, 1) * scale)
        p = gl.exp2(x * scale - _shift(m)[:, None])
    else:
        m = gl.maximum(m, gl.max(x, 1))
        p = gl.exp2(x - _shift(m)[:, None])
    return p, m


@gluon.jit
def _hand_over(m, p, block, maxima, weights_ready, SIDE: gl.constexpr, zero):
    """Give the other consumer the maximum and the weights of a block, which are returned."""
    maxima.index(SIDE).store(m)
    weights = p.to(block[0].dtype)
    block[2].index(zero).store(weights)
    fence_async_shared()
    mbarrier.arrive(weights_ready[SIDE], count=1)
    return weights


@gluon.jit
def _shift(m):
    """What to subtract from scores: a row that has seen no key yet would shift by -inf - -inf."""
    return gl.where(m == -float("inf"), 0.0, m)


@gluon.jit
def _rescale(total, acc, m_old, m_new):
    alpha = gl.exp2(m_old - _shift(m_new))
    return total * alpha, acc * gl.convert_layout(alpha, gl.SliceLayout(1, SUMS))[:, None]


@gluon.jit
def _whole_total(total, m, any_seen, totals, totals_ready, SIDE: gl.constexpr, phase):
    """The denominator over both blocks of all pairs."""
    totals.index(SIDE).store(total)
    mbarrier.arrive(totals_ready[SIDE], count=1)
    mbarrier.wait(totals_ready[1 - SIDE], phase)
    total += totals.index(1 - SIDE).load(ROWS)
    # A row all of whose scores are -inf did see keys, and one of them held an infinity.
    return gl.where((m == -float("inf")) & any_seen, float("nan"), total)


@gluon.jit
def _finish(acc, total, m, item, count, sees, results, exchange, SIDE: gl.constexpr, phase):
    """Write half of the columns of a tile and, on the right, the LSE; NaN in rows that see more keys than there are."""
    row, _least, start, end, whole_end, slot = item
    _maxima, _weights_ready, totals, totals_ready = exchange
    output, output_row, output_head, lse, lse_row, lse_head, scratch, scratch_lse = results
    total = _whole_total(total, m, sees > start, totals, totals_ready, SIDE, phase)
    total = gl.where((sees > end) & ((slot < 0) | (end < whole_end)), float("nan"), total)
    if slot < 0:
        _store_rows(acc, total, m, (output, output_row, output_head), (lse, lse_row, lse_head), SIDE, row, count)
    else:
        _store_slots(acc, total, m, scratch, scratch_lse, SIDE, slot, count)


@gluon.jit
def _store_rows(acc, total, m, output, lse, SIDE: gl.constexpr, row, count):
    """Normalise and write; a row without keys has total = 0."""
    share = gl.convert_layout(gl.where(total == 0, 0.0, 1.0 / total), gl.SliceLayout(1, SUMS))[:, None]
    # Where no row of the tile sees a key, one was gathered nevertheless, and it may hold NaN.
    acc = gl.where(share == 0, 0.0, acc * share)
    value = gl.convert_layout(acc.to(output[0].dtype.element_ty), STORE)
    nth = gl.arange(0, BLOCK, gl.SliceLayout(1, STORE))
    place = (row + nth // HEADS).to(gl.int64) * output[1] + (nth % HEADS).to(gl.int64) * output[2]
    dim = SIDE * HALF + gl.arange(0, HALF, gl.SliceLayout(0, STORE))
    at = gl.multiple_of(output[0] + place, [16])[:, None] + dim[None, :]
    gl.store(at, value, mask=(nth < count * HEADS)[:, None])
    if SIDE == 1:
        nth_row = gl.arange(0, BLOCK, ROWS)
        lse_place = (row + nth_row // HEADS).to(gl.int64) * lse[1] + (nth_row % HEADS).to(gl.int64) * lse[2]
        value_lse = gl.where(total == 0, -float("inf"), m + gl.log2(total))
        gl.store(lse[0] + lse_place, value_lse, mask=nth_row < count * HEADS)


@gluon.jit
def _store_slots(acc, total, m, scratch, scratch_lse, SIDE: gl.constexpr, slot, count):
    """Write partial results as they are, one slot per query, for `merge` (split.py)."""
    first = slot.to(gl.int64) * HEADS
    nth = gl.arange(0, BLOCK, gl.SliceLayout(1, SUMS))
    dim = SIDE * HALF + gl.arange(0, HALF, gl.SliceLayout(0, SUMS))
    at = gl.multiple_of(scratch + (first + nth) * (2 * HALF), [16])[:, None] + dim[None, :]
    gl.store(at, acc, mask=(nth < count * HEADS)[:, None])
    if SIDE == 1:
        nth_row = gl.arange(0, BLOCK, ROWS)
        pair = scratch_lse + 2 * (first + nth_row)
        gl.store(pair, m, mask=nth_row < count * HEADS)
        gl.store(pair + 1, total, mask=nth_row < count * HEADS)
