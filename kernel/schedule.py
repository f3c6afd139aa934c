"""The list of items that the Hopper kernel works through, made on the device: longest first over all requests.

An item is a tile, QUERIES queries of a request, over a run of its keys: all that the tile sees, or a chunk of a split
request (split.py). Where an item goes in the list follows from the row pointers in closed form, by counting the items
of each request that come before, so that programs need not wait for each other and the list has no holes. Items of
about the same length stay in the order of their requests: programs at work at the same time then share keys.

A second list holds the rows that `short` takes, in order: short.py. listing.py says what stands where.

Row pointers may hold anything. Where those of the queries fall or lead outside, nobody can tell which request owns a
row, and the list is empty. Where those of the keys fall, nothing is split, as slots would overlap.
"""

import triton
import triton.language as tl

from .early import let_next_begin, wait_for_launch
from .listing import ROW, store_header, store_item, store_row
from .lookup import existing_keys, extent, find_requests, first_slot, first_tile, is_short
from .split import count_chunks

TILES_PER_PROGRAM = 64


@triton.jit(do_not_specialize=list(range(10)))
def schedule(
    qo_indptr, kv_indptr, items, qo_step: tl.int64, kv_step: tl.int64,
    total_q: tl.int64, batch: tl.int64, num_kv_indices: tl.int64, tile_programs: tl.int32,
    rows_at: tl.int64,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr, TILES: tl.constexpr,
    WAIT: tl.constexpr,
):  # fmt: skip
    """The first programs list tiles of requests that are not split, the others the items of a split request each.

    items  int32, see listing.py; the rows for `short` begin `rows_at` elements from its beginning
    """
    wait_for_launch(WAIT)
    let_next_begin(WAIT)
    qo = (qo_indptr, qo_step)
    kv = (kv_indptr, kv_step)
    program = tl.program_id(0)
    if program < tile_programs:
        _list_tiles(qo, kv, items, rows_at, total_q, batch, num_kv_indices, program, QUERIES, CHUNK, SHORT, MANY, TILES)
    else:
        request = (program - tile_programs).to(tl.int64)
        _list_chunks(qo, kv, items, total_q, batch, num_kv_indices, request, QUERIES, CHUNK, SHORT, MANY)


@triton.jit
def _list_tiles(
    qo, kv, items, rows_at, total_q, batch, num_kv_indices, program,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """TILES tiles (lookup.py): an item each, or a row each of their queries for `short`; program 0 the header too."""
    tile = program.to(tl.int64) * TILES + tl.arange(0, TILES)
    request = find_requests(qo, batch, tile, QUERIES)
    q_start, q_end, kv_start, kv_len = extent(qo, kv, request, batch, total_q)
    q_len = q_end - q_start
    splits = _in_order(kv, batch)
    sound = existing_keys(kv_start, kv_len, num_kv_indices)
    tiles, chunks, _length = requested_work(q_len, kv_len, sound, splits, QUERIES, CHUNK, SHORT, MANY)
    nth = tile - first_tile(q_start, request, QUERIES)
    mine = (chunks == 1) & (nth >= 0) & (nth < tiles)
    for_short = (tiles == 0) & (nth >= 0) & (QUERIES * nth < q_len)
    if (program == 0) | (tl.max((mine | for_short).to(tl.int32), 0) == 1):
        sees = tl.minimum(kv_len - q_len + tl.minimum(QUERIES * (nth + 1), q_len), sound)
        earlier, count, short_rows, all_short_rows, in_order = _count_earlier(
            qo, kv, total_q, batch, num_kv_indices, splits, tl.where(mine, sees, 0).to(tl.int32), request.to(tl.int32),
            QUERIES, CHUNK, SHORT, MANY, 32,
        )  # fmt: skip
        if program == 0:
            padding = total_q - tl.load(qo[0] + batch * qo[1]).to(tl.int64)
            store_header(items, in_order, count, splits, all_short_rows, padding)
        store_item(
            items, earlier.to(tl.int64) + tiles - 1 - nth, q_start + QUERIES * nth,
            tl.minimum(q_len - QUERIES * nth, QUERIES), kv_len - q_len + QUERIES * nth + 1, kv_len * 0, sees, kv_start,
            kv_len * 0 - 1, mine & in_order,
        )  # fmt: skip
        for i in tl.static_range(QUERIES):
            query = QUERIES * nth + i
            store_row(
                items + rows_at + ROW * (short_rows + query), q_start + query, kv_len - q_len + query + 1, kv_len,
                sound, kv_start, for_short & in_order & (query < q_len),
            )  # fmt: skip


@triton.jit
def _list_chunks(
    qo, kv, items, total_q, batch, num_kv_indices, request,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """The items of a request if it is split: each of its tiles over each of its chunks."""
    WIDTH: tl.constexpr = 128
    q_start, q_end, kv_start, kv_len = extent(qo, kv, request, batch, total_q)
    q_len = q_end - q_start
    sound = existing_keys(kv_start, kv_len, num_kv_indices)
    tiles, chunks, length = requested_work(q_len, kv_len, sound, True, QUERIES, CHUNK, SHORT, MANY)
    if chunks > 1:
        splits = _in_order(kv, batch)
        one = tl.zeros([1], tl.int32)
        earlier, _count, _short_rows, _all_short_rows, in_order = _count_earlier(
            qo, kv, total_q, batch, num_kv_indices, splits, one + length.to(tl.int32), one + request.to(tl.int32),
            QUERIES, CHUNK, SHORT, MANY, WIDTH,
        )  # fmt: skip
        first = tl.sum(earlier, 0).to(tl.int64)
        for start in tl.range(0, tiles * chunks, WIDTH, num_stages=1):
            item = start + tl.arange(0, WIDTH)
            # Tiles over the same chunk are neighbours in the list, as they read the same keys.
            nth = item % tiles
            chunk = item // tiles
            end = tl.minimum(kv_len - q_len + tl.minimum(QUERIES * (nth + 1), q_len), (chunk + 1) * length)
            queries = tl.where(end > chunk * length, tl.minimum(q_len - QUERIES * nth, QUERIES), 0)
            store_item(
                items, first + item, q_start + QUERIES * nth, queries, kv_len - q_len + QUERIES * nth + 1,
                chunk * length, end, kv_start + nth * 0, first_slot(kv_start, CHUNK) + chunk * q_len + QUERIES * nth,
                splits & in_order & (item < tiles * chunks),
            )  # fmt: skip


@triton.jit
def _in_order(pointer, batch):
    """Whether a row pointer never falls."""
    WIDTH: tl.constexpr = 128
    falls = tl.sum(tl.zeros([WIDTH], tl.int32), 0)
    for first in tl.range(0, batch, WIDTH, num_stages=1):
        nth = first + tl.arange(0, WIDTH)
        start = tl.load(pointer[0] + nth * pointer[1], mask=nth < batch, other=0)
        end = tl.load(pointer[0] + (nth + 1) * pointer[1], mask=nth < batch, other=0)
        falls += tl.sum((end < start).to(tl.int32), 0)
    return falls == 0


@triton.jit
def requested_work(
    q_len, kv_len, sound, splits,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Of each request, `sound` of whose keys exist: its tiles (none if `short` takes it), chunks and keys in each."""
    ours = (q_len > 0) & ~is_short(q_len, sound, SHORT, MANY)
    q_len = tl.where(ours, q_len, 1)
    chunks, length = count_chunks(q_len, kv_len, sound, ours & splits, QUERIES, CHUNK)
    return tl.where(ours, tl.cdiv(q_len, QUERIES), 0), chunks, length


@triton.jit
def _count_earlier(
    qo, kv, total_q, batch, num_kv_indices, splits, keys, request,
    QUERIES: tl.constexpr, CHUNK: tl.constexpr, SHORT: tl.constexpr, MANY: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """How many items of other requests come before one of `keys` keys of `request`: clearly longer ones, and about as
    long ones of earlier requests. How many items there are. How many rows of earlier requests `short` takes, and of
    all. Whether query pointers are in order. WIDTH requests are looked at at a time.
    """
    alike, longest = _about(keys)
    earlier = keys * 0
    short_rows = keys * 0
    none = tl.sum(tl.zeros([WIDTH], tl.int32), 0)
    count, all_short_rows, out_of_order = none, none, none
    for first in tl.range(0, batch, WIDTH, num_stages=1):
        other = first + tl.arange(0, WIDTH)
        inside = other < batch
        q_start = tl.load(qo[0] + other * qo[1], mask=inside, other=0).to(tl.int64)
        q_end = tl.load(qo[0] + (other + 1) * qo[1], mask=inside, other=0).to(tl.int64)
        kv_start = tl.load(kv[0] + other * kv[1], mask=inside, other=0).to(tl.int64)
        kv_end = tl.load(kv[0] + (other + 1) * kv[1], mask=inside, other=0).to(tl.int64)
        out_of_order += tl.sum(((q_start < 0) | (q_end < q_start) | (q_end > total_q)).to(tl.int32), 0)
        q_len = q_end - q_start
        kv_len = tl.maximum(kv_end - kv_start, 0)
        sound = existing_keys(kv_start, kv_len, num_kv_indices)
        tiles, chunks, length = requested_work(q_len, kv_len, sound, splits, QUERIES, CHUNK, SHORT, MANY)
        # Tile i sees prefix + QUERIES * (i + 1) keys, the last one all, and none more than exist.
        prefix = tl.minimum(tl.maximum(kv_len - q_len, -(2**30)), 2**30).to(tl.int32)[None, :]
        sound = sound.to(tl.int32)[None, :]
        tiles = tiles.to(tl.int32)
        total = tiles * chunks.to(tl.int32)
        rows = tl.where(tiles == 0, q_len, 0).to(tl.int32)
        count += tl.sum(total, 0)
        all_short_rows += tl.sum(rows, 0)
        tiles = tiles[None, :]
        other = other.to(tl.int32)[None, :]
        before = other < request[:, None]
        limit = tl.where(before, alike[:, None], longest[:, None])
        shorter = tl.where(limit < prefix, 0, tl.minimum((limit - prefix) // QUERIES, tiles - 1))
        whole = tl.where(limit >= sound, 0, tiles - shorter)
        split = tl.where(length.to(tl.int32)[None, :] > limit, total[None, :], 0)
        more = tl.where((chunks > 1)[None, :], split, whole)
        earlier += tl.sum(tl.where((tiles > 0) & (other != request[:, None]), more, 0), 1)
        short_rows += tl.sum(tl.where(before, rows[None, :], 0), 1)
    return earlier, count, short_rows, all_short_rows, out_of_order == 0


@triton.jit
def _about(keys):
    """Items of more than the first and no more than the second number of keys are about as long: to a quarter."""
    rest = tl.maximum(keys - 1, 0)
    ones = rest | (rest >> 1)
    ones = ones | (ones >> 2)
    ones = ones | (ones >> 4)
    ones = ones | (ones >> 8)
    ones = ones | (ones >> 16)
    below = ones >> 3
    return tl.where(rest == 0, -(2**30), rest - (rest & below)), (rest | below) + 1
