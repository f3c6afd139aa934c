"""The list that `schedule` makes for the kernels of the Hopper path: what stands where in it.

It is one tensor of int32: HEADER lines of ITEM, then the items of ITEM each, then the rows for `short` of ROW each.
Gluon cannot call what is written here: it reads items in prefill_hopper.py.
"""

import triton
import triton.language as tl

# int32 per item, of which the last is not used, and per row.
ITEM = tl.constexpr(8)
ROW = tl.constexpr(4)
# The first line of the header: how many items there are, whether requests may be split, how many rows `short` takes,
# and how many of those have been taken.
ITEM_COUNT = tl.constexpr(0)
SPLITTING = tl.constexpr(1)
ROW_COUNT = tl.constexpr(2)
ROWS_TAKEN = tl.constexpr(3)
# The other four are room for the rotary key of a page outside the cache, which the Hopper kernel writes.
NAN_KEY = ITEM
HEADER = tl.constexpr(5)


@triton.jit
def store_header(items, in_order, count, splits, short_rows, padding):
    """The header; without any item or row unless the query pointers are in order."""
    tl.store(items + ITEM_COUNT, tl.where(in_order, count, 0))
    tl.store(items + SPLITTING, splits.to(tl.int32))
    tl.store(items + ROW_COUNT, tl.where(in_order, short_rows + padding.to(tl.int32), 0))
    tl.store(items + ROWS_TAKEN, 0)


@triton.jit
def store_item(items, nth, row, count, least, start, end, kv_start, slot, mask):
    """Item number `nth`: a tile of queries over a run of keys of their request.

    row, count    the first query row of the tile and how many are in it; 0 for nothing to do
    least         keys of the request that the first of them sees; each next one sees one more
    start, end    the run of keys; no more than the last query sees
    kv_start      position of the request's first key
    slot          where in scratch partial results go, see split.py; -1: they are final, and rows that see more are NaN
    """
    at = items + (HEADER + nth) * ITEM
    tl.store(at, row.to(tl.int32), mask=mask)
    tl.store(at + 1, count.to(tl.int32), mask=mask)
    # A request may claim more keys than there are.
    tl.store(at + 2, tl.minimum(least, 2**30).to(tl.int32), mask=mask)
    tl.store(at + 3, start.to(tl.int32), mask=mask)
    tl.store(at + 4, tl.maximum(end, 0).to(tl.int32), mask=mask)
    tl.store(at + 5, kv_start.to(tl.int32), mask=mask)
    tl.store(at + 6, slot.to(tl.int32), mask=mask)


@triton.jit
def store_row(at, row, sees, kv_len, sound, kv_start, mask):
    """A row for `short`: its number, the keys that it sees and that exist, all that it sees, where its keys begin."""
    sees = tl.minimum(tl.maximum(sees, 0), kv_len)
    end = tl.minimum(sees, sound)
    tl.store(at, row.to(tl.int32), mask=mask)
    tl.store(at + 1, end.to(tl.int32), mask=mask)
    tl.store(at + 2, tl.minimum(sees, 2**30).to(tl.int32), mask=mask)
    tl.store(at + 3, tl.where(end > 0, kv_start, 0).to(tl.int32), mask=mask)


@triton.jit
def load_row(at):
    """Its number, the keys that it sees and that exist, all that it sees, where its keys begin."""
    return tl.load(at).to(tl.int64), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3).to(tl.int64)
