"""The list of the Hopper kernel: every tile once, longest first, whatever the row pointers hold."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel import listing
from kernel.plan import Plan, Tile
from kernel.schedule import TILES_PER_PROGRAM, schedule

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADER, ITEM, ROW = listing.HEADER.value, listing.ITEM.value, listing.ROW.value
_QUERIES, _CHUNK, _SHORT, _MANY = 4, 256, 64, 20
_PLAN = Plan(Tile(_QUERIES, 64, 2, 2, 8), Tile(1, 64, 2, 4, 4), chunk=_CHUNK, short=_SHORT, many=_MANY, listed=True)


def _lists(q_lens: list[int], kv_lens: list[int], padding: int = 0) -> tuple[np.ndarray, np.ndarray]:
    qo, kv = (torch.tensor([0, *np.cumsum(lens)], dtype=torch.int32) for lens in (q_lens, kv_lens))
    return _run(qo, kv, int(qo[-1]) + padding, int(kv[-1]))[1:]


def _run(qo, kv, total_q: int, num_kv_indices: int) -> tuple[bool, np.ndarray, np.ndarray]:
    """Whether requests are split, the items, and the rows for `short`."""
    batch = len(qo) - 1
    capacity = _PLAN.items(total_q, batch, num_kv_indices)
    rows_at = (HEADER + capacity) * ITEM
    table = torch.full((rows_at + ROW * total_q + 8,), -77, dtype=torch.int32, device=DEVICE)
    tile_programs = -(-_PLAN.tiles(total_q, batch) // TILES_PER_PROGRAM)
    programs = tile_programs + (batch if _PLAN.slots(num_kv_indices) else 0)
    schedule[(programs,)](
        qo.to(DEVICE), kv.to(DEVICE), table, 1, 1, total_q, batch, num_kv_indices, tile_programs, rows_at,
        **_PLAN.schedule_constants,
    )  # fmt: skip
    table = table.cpu().numpy()
    count, splits, short_rows = table[:3].tolist()
    assert count <= capacity
    assert short_rows <= total_q
    items, rows = table[:rows_at].reshape(-1, ITEM), table[rows_at:].reshape(-1, ROW)
    assert (items[HEADER + count :] == -77).all()
    assert (rows[short_rows:] == -77).all()
    return bool(splits), items[HEADER : HEADER + count, :7], rows[:short_rows]


def _is_short(q_len: int, kv_len: int) -> bool:
    return kv_len <= _SHORT and (q_len <= _MANY or kv_len <= _MANY)


def _expected(q_lens: list[int], kv_lens: list[int]) -> set[tuple[int, ...]]:
    """The items of a batch, from the definition of a tile and of a split."""
    items = set()
    row = start = 0
    for q_len, kv_len in zip(q_lens, kv_lens, strict=True):
        if not _is_short(q_len, kv_len):
            tiles = -(-q_len // _QUERIES)
            length = _CHUNK * q_len if kv_len <= 8 * _CHUNK else 4 * _CHUNK * tiles
            for first in range(0, q_len, _QUERIES):
                queries = min(_QUERIES, q_len - first)
                prefix = kv_len - q_len
                sees = prefix + first + queries
                for chunk in range(-(-kv_len // length)):
                    end = min(sees, (chunk + 1) * length)
                    if kv_len <= length:
                        items.add((row + first, queries, prefix + first + 1, 0, max(sees, 0), start, -1))
                    elif end > chunk * length:
                        slot = 2 * start // _CHUNK + chunk * q_len + first
                        items.add((row + first, queries, prefix + first + 1, chunk * length, end, start, slot))
        row += q_len
        start += kv_len
    return items


def _expected_rows(q_lens: list[int], kv_lens: list[int], padding: int) -> list[tuple[int, ...]]:
    """Row, keys that it sees and that exist, keys that it sees, first key position."""
    rows = []
    row = start = 0
    for q_len, kv_len in zip([*q_lens, padding], [*kv_lens, 0], strict=True):
        if _is_short(q_len, kv_len):
            for query in range(q_len):
                sees = max(kv_len - q_len + query + 1, 0)
                rows.append((row + query, sees, sees, start if sees else 0))
        row += q_len
        start += kv_len
    return rows


_LENGTHS = st.lists(
    st.tuples(
        st.integers(0, 30) | st.sampled_from([128, 300, 1000]),
        st.integers(0, 300) | st.sampled_from([20, 21, 64, 65, 256, 257, 512, 2048, 2049, 5000]),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(_LENGTHS, st.integers(0, 5))
@example([(1, 131072)], 0)
@example([(0, 70), (300, 70)], 0)
@example([(20, 21), (21, 20), (21, 21), (21, 64)], 0)
@example([(1000, 3000)] * 3 + [(1, 4096)] * 40, 2)
def test_every_tile_and_chunk_and_short_row_is_listed_once(lengths, padding):
    q_lens, kv_lens = map(list, zip(*lengths, strict=True))
    listed, rows = _lists(q_lens, kv_lens, padding)
    assert [tuple(row) for row in rows.tolist()] == _expected_rows(q_lens, kv_lens, padding)
    real = [tuple(item) for item in listed.tolist() if item[1] > 0]
    assert len(real) == len(set(real))
    assert set(real) == _expected(q_lens, kv_lens)


def test_the_longest_come_first_to_a_quarter():
    q_lens, kv_lens = [300, 1, 40, 900], [700, 1500, 65, 900]
    listed, _ = _lists(q_lens, kv_lens)
    keys = [end - start if slot < 0 else _CHUNK for _, _, _, start, end, _, slot in listed.tolist()]
    assert all(later <= 5 / 4 * sooner + 1 for i, sooner in enumerate(keys) for later in keys[i:])


def test_items_about_as_long_stay_with_their_request():
    listed, _ = _lists([256] * 8, [2048] * 8)
    switches = np.diff(listed[:, 5]) != 0
    assert switches.sum() < 24


@pytest.mark.parametrize("qo", [[0, 9, 4, 12], [-3, 4, 8, 12], [0, 4, 8, 13], [0, 2**31 - 1, 8, 12]])
def test_nothing_is_listed_where_query_pointers_are_out_of_order(qo):
    _, listed, rows = _run(torch.tensor(qo, dtype=torch.int32), torch.tensor([0, 100, 200, 230]), 12, 300)
    assert len(listed) == len(rows) == 0


def test_nothing_is_split_where_key_pointers_fall():
    splits, listed, rows = _run(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1000, 0, 1000]), 3, 1000)
    assert not splits
    assert listed[:, [0, 3, 4, 5, 6]].tolist() == [[0, 0, 1000, 0, -1], [2, 0, 1000, 0, -1]]
    assert rows.tolist() == [[1, 0, 0, 0]]


def test_requests_that_reach_outside_are_listed_up_to_there():
    kv = torch.tensor([-100, 100, 200, 2**40])
    splits, listed, rows = _run(torch.tensor([0, 4, 8, 12]), kv, 12, 300)
    assert splits
    assert listed[:, [0, 3, 4, 5]].tolist() == [[4, 0, 100, 100], [8, 0, 100, 200]]
    assert listed[1, 2] == 2**30
    assert rows.tolist() == [[row, 0, 196 + row + 1, 0] for row in range(4)]
