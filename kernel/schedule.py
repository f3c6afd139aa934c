"""The list of items that the Hopper kernel works through, made on the device: longest first over all requests.

An item is a tile, QUERIES queries of a request, over a run of its keys: all that the tile sees, or a chunk of a split
request (split.py). Where an item goes in the list follows from the row pointers in closed form, by counting the items of
each request that are longer, so that programs need not wait for each other and the list has no holes.

Row pointers may hold anything: where they fall or lead outside, the list is empty, and `lone` computes every request.
"""

import triton
import triton.language as tl

from .lookup import extent, first_slot, first_tile
from .split import split_length

# Fields of an item, of which the last is not used; see `_item` in prefill_hopper.py.
ITEM = 8
# Rows of as many fields in front of the items: one says how many there are and whether the row pointers are in order,
# four hold 64 NaN of 16 bits: the rotary key of a page outside the cache.
HEADER = 5
_HEADER = tl.constexpr(HEADER)
_NAN_PAIR = tl.constexpr(0x7FFF7FFF)
OPTIONS = {"num_warps": 4}
TILES_PER_PROGRAM = 64


@triton.jit(do_not_specialize=list(range(9)))
def schedule(
    qo_indptr, kv_indptr, items, qo_step: tl.int64, kv_step: tl.int64,
    total_q: tl.int64, batch: tl.int64, num_kv_indices: tl.int64, tile_programs: tl.int32,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, TILES: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """The first programs list tiles of requests that are not split, the others the items of a split request each."""
    qo = (qo_indptr, qo_step)
    kv = (kv_indptr, kv_step)
    program = tl.program_id(0)
    if program < tile_programs:
        _list_tiles(qo, kv, items, total_q, batch, num_kv_indices, program, QUERIES, CHUNK, SHORT, TILES, FIELDS)
    else:
        request = (program - tile_programs).to(tl.int64)
        _list_chunks(qo, kv, items, total_q, batch, num_kv_indices, request, QUERIES, CHUNK, SHORT, FIELDS)


@triton.jit
def _list_tiles(
    qo, kv, items, total_q, batch, num_kv_indices, program,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, TILES: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    tile = program.to(tl.int64) * TILES + tl.arange(0, TILES)
    request = _find(qo, batch, tile, QUERIES)
    q_start, q_end, kv_start, kv_len = extent(qo, kv, request, batch, total_q)
    ours, tiles, chunks, length = _work(q_start, q_end, kv_start, kv_len, num_kv_indices, QUERIES, CHUNK, SHORT)
    nth = tile - first_tile(q_start, request, QUERIES)
    mine = ours & (chunks == 1) & (nth >= 0) & (nth < tiles)
    if (program == 0) | (tl.max(mine.to(tl.int32), 0) == 1):
        sees = kv_len - (q_end - q_start) + tl.minimum(QUERIES * (nth + 1), q_end - q_start)
        longer, count, in_order = _count_longer(
            qo, kv, total_q, batch, num_kv_indices, sees.to(tl.int32), request.to(tl.int32), QUERIES, CHUNK, SHORT
        )
        if program == 0:
            tl.store(items, tl.where(in_order, count, 0))
            tl.store(items + 1, in_order.to(tl.int32))
            tl.store(items + FIELDS + tl.arange(0, 32), tl.full([32], _NAN_PAIR, tl.int32))
        least = kv_len - (q_end - q_start) + QUERIES * nth + 1
        place = longer.to(tl.int64) + tiles - 1 - nth
        queries = tl.minimum(q_end - q_start - QUERIES * nth, QUERIES)
        _store(
            items, place, q_start + QUERIES * nth, queries, least, kv_len * 0, sees, kv_start, kv_len * 0 - 1,
            mine & in_order, QUERIES, FIELDS,
        )  # fmt: skip


@triton.jit
def _list_chunks(
    qo, kv, items, total_q, batch, num_kv_indices, request,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = 128
    q_start, q_end, kv_start, kv_len = extent(qo, kv, request, batch, total_q)
    ours, tiles, chunks, length = _work(q_start, q_end, kv_start, kv_len, num_kv_indices, QUERIES, CHUNK, SHORT)
    if ours & (chunks > 1):
        one = tl.zeros([1], tl.int32)
        longer, count, in_order = _count_longer(
            qo, kv, total_q, batch, num_kv_indices, one + length.to(tl.int32), one + request.to(tl.int32),
            QUERIES, CHUNK, SHORT,
        )  # fmt: skip
        first = tl.sum(longer, 0).to(tl.int64)
        q_len = q_end - q_start
        for start in tl.range(0, tiles * chunks, WIDTH, num_stages=1):
            item = start + tl.arange(0, WIDTH)
            # Tiles over the same chunk are neighbours in the list, as they read the same keys.
            nth = item % tiles
            chunk = item // tiles
            end = tl.minimum(kv_len - q_len + tl.minimum(QUERIES * (nth + 1), q_len), (chunk + 1) * length)
            queries = tl.where(end > chunk * length, tl.minimum(q_len - QUERIES * nth, QUERIES), 0)
            _store(
                items, first + item, q_start + QUERIES * nth, queries, kv_len - q_len + QUERIES * nth + 1,
                chunk * length, end, kv_start + nth * 0, first_slot(kv_start, CHUNK) + chunk * q_len + QUERIES * nth,
                in_order & (item < tiles * chunks), QUERIES, FIELDS,
            )  # fmt: skip


@triton.jit
def _find(qo, batch, tile, QUERIES: tl.constexpr):
    """The last request that starts at or before each tile."""
    low = tile * 0
    size = batch
    while size > 1:
        half = size // 2
        probe = low + half
        q_start = tl.load(qo[0] + probe * qo[1]).to(tl.int64)
        low = tl.where(first_tile(q_start, probe, QUERIES) <= tile, probe, low)
        size -= half
    return low


@triton.jit
def _work(
    q_start, q_end, kv_start, kv_len, num_kv_indices, QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr
):
    """Of each request: whether it is listed (the others go to `lone`), its tiles, its chunks, keys per chunk."""
    q_len = q_end - q_start
    ours = (q_len > 0) & (kv_len > SHORT) & (kv_start >= 0) & (kv_start + kv_len <= num_kv_indices)
    q_len = tl.where(ours, q_len, 1)
    length = split_length(q_len, kv_len, QUERIES, CHUNK)
    chunks = tl.where(ours, tl.cdiv(kv_len, length), 1)
    return ours, tl.where(ours, tl.cdiv(q_len, QUERIES), 0), chunks, length


@triton.jit
def _count_longer(
    qo, kv, total_q, batch, num_kv_indices, keys, request,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """How many items of other requests come before one of `keys` keys of `request`; all items; are pointers in order.

    Longer ones, and as long ones of earlier requests.
    """
    WIDTH: tl.constexpr = 32
    longer = keys * 0
    count = tl.sum(tl.zeros([WIDTH], tl.int32), 0)
    out_of_order = count
    for first in tl.range(0, batch, WIDTH, num_stages=1):
        other = first + tl.arange(0, WIDTH)
        inside = other < batch
        q_start = tl.load(qo[0] + other * qo[1], mask=inside, other=0).to(tl.int64)
        q_end = tl.load(qo[0] + (other + 1) * qo[1], mask=inside, other=0).to(tl.int64)
        kv_start = tl.load(kv[0] + other * kv[1], mask=inside, other=0).to(tl.int64)
        kv_end = tl.load(kv[0] + (other + 1) * kv[1], mask=inside, other=0).to(tl.int64)
        wrong = (q_start < 0) | (q_end < q_start) | (q_end > total_q) | (kv_end < kv_start)
        out_of_order += tl.sum((inside & wrong).to(tl.int32), 0)
        kv_len = tl.maximum(kv_end - kv_start, 0)
        ours, tiles, chunks, length = _work(q_start, q_end, kv_start, kv_len, num_kv_indices, QUERIES, CHUNK, SHORT)
        tiles = tiles.to(tl.int32)
        total = tiles * tl.where(ours, chunks, 0).to(tl.int32)
        count += tl.sum(total, 0)
        kv_len = tl.where(ours, kv_len, 0).to(tl.int32)
        prefix = kv_len - tl.where(ours, q_end - q_start, 0).to(tl.int32)
        length = tl.where(ours, length, 0).to(tl.int32)
        limit = keys[:, None] - (other.to(tl.int32)[None, :] < request[:, None]).to(tl.int32)
        # Tile i sees prefix + QUERIES * (i + 1) keys, the last one kv_len.
        short = tl.minimum(tl.maximum((limit - prefix[None, :]) // QUERIES, 0), (tiles - 1)[None, :])
        short = tl.where(limit >= prefix[None, :], short, 0)
        whole = tl.where(limit >= kv_len[None, :], 0, tiles[None, :] - short)
        split = tl.where(length[None, :] > limit, total[None, :], 0)
        more = tl.where((chunks > 1)[None, :], split, whole)
        more = tl.where(ours[None, :] & (other.to(tl.int32)[None, :] != request[:, None]), more, 0)
        longer += tl.sum(more, 1)
    return longer, count, out_of_order == 0


@triton.jit
def _store(
    items, place, row, queries, least, start, end, kv_start, slot, mask, QUERIES: tl.constexpr, FIELDS: tl.constexpr
):
    at = items + (_HEADER + place) * FIELDS
    tl.store(at, row.to(tl.int32), mask=mask)
    tl.store(at + 1, queries.to(tl.int32), mask=mask)
    # Rows of a tile that see no key may be far from seeing one.
    tl.store(at + 2, tl.maximum(least, -QUERIES).to(tl.int32), mask=mask)
    tl.store(at + 3, start.to(tl.int32), mask=mask)
    tl.store(at + 4, tl.maximum(end, 0).to(tl.int32), mask=mask)
    tl.store(at + 5, kv_start.to(tl.int32), mask=mask)
    tl.store(at + 6, slot.to(tl.int32), mask=mask)
