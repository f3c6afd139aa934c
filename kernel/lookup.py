"""Which request a program works for, found on the device from the row pointers.

The host knows shapes only. So programs come in ranges that shapes bound, and each finds its request by a search:

- tiles: request b owns the tiles from qo_indptr[b] // QUERIES + b on, at least as many as its queries fill.
- slots: request b owns the slots from 2 * kv_indptr[b] // CHUNK on, at least as many as its split needs, see split.py.
- rows: those of q_nope, for `short`.

Three searches, as each is a chain of waits for memory cut short in its own way: `find_request` takes the fewest steps,
`find_requests` looks for a whole block of tiles, `find_row` needs no load after the last step. Row pointers may hold
anything: every search ends, and what it finds is in 0 .. batch.
"""

import triton
import triton.language as tl


@triton.jit
def find_request(qo, kv, batch, position, in_slots, QUERIES: tl.constexpr, CHUNK: tl.constexpr):
    """The last request in 0 .. batch that starts at or before `position`, a slot or a tile; `batch` is the padding.

    Each step cuts the candidates into 128 pieces: one round trip to memory for most batches where halving takes seven.
    Both row pointers are read although one decides, as the caller then finds the other one in the cache.
    """
    WIDTH: tl.constexpr = 128
    piece = tl.arange(0, WIDTH)
    low = batch * 0
    stop = batch + 1
    while stop - low > 1:
        step = (stop - low + WIDTH - 1) // WIDTH
        probe = low + step * piece
        inside = probe < stop
        q_start = tl.load(qo[0] + probe * qo[1], mask=inside, other=0).to(tl.int64)
        kv_start = tl.load(kv[0] + probe * kv[1], mask=inside, other=0).to(tl.int64)
        first = tl.where(in_slots, first_slot(kv_start, CHUNK), first_tile(q_start, probe, QUERIES))
        reached = tl.sum((inside & (first <= position)).to(tl.int32), 0)
        low += step * (tl.maximum(reached, 1) - 1)
        stop = tl.minimum(low + step, stop)
    return low


@triton.jit
def find_requests(qo, batch, tile, QUERIES: tl.constexpr):
    """The last request that starts at or before each tile; `batch` is the padding."""
    low = tile * 0
    size = batch + 1
    while size > 1:
        half = size // 2
        probe = low + half
        q_start = tl.load(qo[0] + probe * qo[1]).to(tl.int64)
        low = tl.where(first_tile(q_start, probe, QUERIES) <= tile, probe, low)
        size -= half
    return low


@triton.jit
def find_row(qo, kv, batch, row):
    """The last request in 0 .. batch that starts at or before a row, and its entries and the next in both row pointers.

    Each step cuts the candidates into 31 pieces: one trip to memory for up to 30 requests, two for up to 960. Past the
    end comes the last entry again. Ends whatever the row pointers hold, and looks at nothing outside.
    """
    lane = tl.arange(0, 32)
    low = batch * 0
    count = batch + 1
    step = count
    nth = low
    q = tl.zeros([32], qo[0].dtype.element_ty)
    k = tl.zeros([32], kv[0].dtype.element_ty)
    while step > 0:
        step = (count + 30) // 31
        probe = low + step * lane
        at = tl.minimum(probe, batch).to(tl.int64)
        q = tl.load(qo[0] + at * qo[1])
        k = tl.load(kv[0] + at * kv[1])
        reached = tl.sum(((probe < low + count) & (q <= row)).to(tl.int32), 0)
        nth = tl.maximum(reached, 1) - 1
        low += step * nth
        count = tl.minimum(step, count - step * nth)
        step = tl.where(step > 1, step, 0)
    return low, _lane(q, nth), _lane(q, nth + 1), _lane(k, nth), _lane(k, nth + 1)


@triton.jit
def _lane(values, nth):
    return tl.sum(tl.where(tl.arange(0, 32) == nth, values, 0), 0).to(tl.int64)


@triton.jit
def first_tile(q_start, request, QUERIES: tl.constexpr):
    """The first tile of a request: strictly rising with it, and leaving room for all of the tiles before it."""
    return q_start // QUERIES + request


@triton.jit
def first_slot(kv_start, CHUNK: tl.constexpr):
    """The first slot of a request: its split fills at most 2 * kv_len / CHUNK slots."""
    return 2 * kv_start // CHUNK


@triton.jit
def own_slots(kv_len, CHUNK: tl.constexpr):
    """How many slots a request owns at least, whatever its neighbours are."""
    return 2 * kv_len // CHUNK


@triton.jit
def extent(qo, kv, request, batch, total_q):
    """Query rows q_start .. q_end of a request, its first key position and key count; `batch` is the padding."""
    after = tl.minimum(request + 1, batch)
    q_start = tl.load(qo[0] + request * qo[1]).to(tl.int64)
    q_end = tl.load(qo[0] + after * qo[1]).to(tl.int64)
    kv_start = tl.load(kv[0] + request * kv[1]).to(tl.int64)
    kv_end = tl.load(kv[0] + after * kv[1]).to(tl.int64)
    return q_start, tl.where(request < batch, q_end, total_q), kv_start, tl.maximum(kv_end - kv_start, 0)


@triton.jit
def is_short(q_len, sound, SHORT: tl.constexpr, MANY: tl.constexpr):
    """Whether `short` takes a request, `sound` of whose keys exist: up to SHORT of them, unless keys and queries are
    both more than MANY, which tiles of several queries get done sooner, as they read each key once for all of them.
    """
    return (sound <= SHORT) & (tl.minimum(q_len, sound) <= MANY)


@triton.jit
def existing_keys(kv_start, kv_len, num_kv_indices):
    """How many keys of a request lie inside kv_indices: those before the first that does not."""
    return tl.where(kv_start < 0, 0, tl.minimum(tl.maximum(num_kv_indices - kv_start, 0), kv_len))
