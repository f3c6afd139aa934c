"""Which request a program works for, found on the device from the row pointers.

The host knows shapes only. So programs come in two ranges that shapes bound, and each finds its request by a search:

- tiles: request b owns the tiles from qo_indptr[b] // QUERIES + b on, at least as many as its queries fill.
- slots: request b owns the slots from 2 * kv_indptr[b] // CHUNK on, at least as many as its split needs, see split.py.

Row pointers may hold anything: every search ends, and what it finds is in 0 .. batch.
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
def existing_keys(kv_start, kv_len, num_kv_indices):
    """How many keys of a request lie inside kv_indices: those before the first that does not."""
    return tl.where(kv_start < 0, 0, tl.minimum(tl.maximum(num_kv_indices - kv_start, 0), kv_len))
