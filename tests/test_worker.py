"""What a worker does with the failures that it finds."""

import time

import pytest

from fuzz import worker
from fuzz.case import Case
from fuzz.checks import Finding, Verdict
from fuzz.describe import describe
from fuzz.minimize import Search
from fuzz.options import Options
from fuzz.run import Run
from fuzz.strata.strategy import CPU
from fuzz.terms import drawn
from fuzz.totals import Totals
from fuzz.worker import Worker
from kernel.contract import CONTRACTS

CONTRACT = CONTRACTS["definition"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run without memory of earlier ones."""
    monkeypatch.setattr(worker, "database", lambda *_: None)
    made = Run(Options(max_cases=96), 5, "cpu", tmp_path / "out", time.monotonic(), None, None, 1, 1)
    made.journals.mkdir(parents=True)
    return made


def crosses_a_tile(case: Case) -> bool:
    """Whether the first and the last query of a request see different numbers of tiles of 64 keys."""
    return any(q > 1 and keys >= q and (keys - q) // 64 != (keys - 1) // 64 for _, q, keys in case.lengths)


def judge(case: Case, also: frozenset[str] = frozenset()) -> Verdict:
    verdict = Verdict(case, {"alive": None})
    verdict.add("output", Finding("output", "wrong", (0, 0, 0), rows="boundary") if crosses_a_tile(case) else None)
    return verdict


def simplify(case, fails, seconds):
    for _better in Search(case, CONTRACT, fails, seconds).improvements():
        pass


def smallest(run: Run, simplify) -> list[list[int]]:
    """The lengths of the smallest case that a worker comes to."""
    strategy = drawn(CONTRACT, (), CPU)

    def revive(value, check):
        return Case.from_json(value)

    Worker(run, "gw0").work(strategy, describe, judge, lambda case, *_: judge(case), revive, simplify)
    totals = Totals(run.journals)
    totals.update()
    [bucket] = totals.buckets()
    return bucket.smallest.case["lengths"]


def test_a_search_ends_at_the_smallest_case_whatever_hypothesis_leaves(run):
    assert smallest(run, simplify) == [[1, 2, 65]]
