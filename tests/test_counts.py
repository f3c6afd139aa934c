import math

import pytest

from fuzz.counts import FIRST_BIN, LAST_BIN, Counts, Pace, bin_of


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.0, FIRST_BIN), (1e-30, FIRST_BIN), (0.99, -1), (1.0, -1), (1.01, 0), (1e9, LAST_BIN), (math.inf, LAST_BIN),
     (math.nan, LAST_BIN)],
)  # fmt: skip
def test_what_the_bound_allows_lies_below_bin_zero(ratio: float, expected: int):
    assert bin_of(ratio) == expected


def test_pace_keeps_every_case_in_bounded_space():
    pace = Pace()
    for second in range(10_000):
        pace.add(float(second))
    assert sum(pace.cases) == 10_000
    assert len(pace.cases) <= 120
    assert set(pace.cases[:-1]) == {int(pace.width)}


def test_requests_count_once_a_case_and_only_with_queries_and_enough_keys():
    counts = Counts()
    case = {"lengths": [[5, 1, 65], [1, 3, 65], [1, 0, 64], [1, 9, 2]]}
    counts.add(case, ["lengths:ragged"], {"output": 0.5, "alive": None}, {"output"})
    assert counts.residues["kv_len"] == {1: 1}
    assert counts.residues["prefix"] == {0: 1, 62: 1}
    assert counts.lengths == {(1, 7): 1, (2, 7): 1, (0, 7): 1, (4, 2): 1}
    assert counts.ratios == {"output": {-2: 1}}
    assert (counts.cells["lengths:ragged", "output"].failed, counts.cells["lengths:ragged", "alive"].failed) == (1, 0)
