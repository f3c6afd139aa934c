"""What a worker does with the failures that it finds."""

import time
from pathlib import Path

import pytest

from fuzz import searches
from fuzz.case import Case
from fuzz.checks import Finding, Verdict
from fuzz.describe import describe
from fuzz.options import Options
from fuzz.run import Run
from fuzz.shrink import Search
from fuzz.strata.strategy import CPU
from fuzz.terms import drawn
from fuzz.totals import Totals
from fuzz.worker import Worker
from kernel.contract import CONTRACTS

CONTRACT = CONTRACTS["definition"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run without memory of earlier ones."""
    monkeypatch.setattr(searches, "database", lambda *_: None)
    made = Run(Options(max_cases=96), 5, "cpu", tmp_path / "out", time.monotonic(), None, None, 1, 1)
    made.journals.mkdir(parents=True)
    return made


def crosses_a_tile(case: Case) -> bool:
    """Whether the first and the last query of a request see different numbers of tiles of 64 keys."""
    return any(q > 1 and keys >= q and (keys - q) // 64 != (keys - 1) // 64 for _, q, keys in case.lengths)


class Pretended:
    """The property of a kernel that is wrong where a request crosses a tile."""

    strategy = drawn(CONTRACT, (), CPU)
    describe = staticmethod(describe)

    def judge(self, case: Case, also: frozenset[str] = frozenset()) -> Verdict:
        verdict = Verdict(case, {"alive": None})
        verdict.add("output", Finding("output", "wrong", (0, 0, 0), rows="boundary") if crosses_a_tile(case) else None)
        return verdict

    def keep(self, case: Case, check: str, place: Path) -> Verdict:
        return self.judge(case)

    def revive(self, value, check: str) -> Case:
        return Case.from_json(value)

    def simplify(self, case: Case, fails, seconds: float) -> None:
        Search(case, CONTRACT, fails, seconds).smallest()


def test_a_search_ends_at_the_smallest_case_whatever_hypothesis_leaves(run):
    Worker(run, "gw0", Pretended()).work()
    totals = Totals(run.journals)
    totals.update()
    [bucket] = totals.buckets()
    assert bucket.smallest.case["lengths"] == [[1, 2, 65]]
