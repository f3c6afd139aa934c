"""`python -m fuzz minimize`: the smallest case of the same bucket, in the same dump."""

import shutil
from pathlib import Path

import pytest

from fuzz import shrink
from fuzz.case import FAMILIES, NAMED, Case, promises_needed
from fuzz.cli import main
from fuzz.describe import describe
from fuzz.minimize import minimize
from fuzz.reading import read
from fuzz.shrink import Search, simpler
from kernel.contract import CONTRACTS
from tests.dumping import dump, spec

LARGE = Case(
    ((3, 2, 9), (1, 5, 90), (2, 0, 7)),
    pages="permuted",
    values="rising",
    layout="padded",
    dtype="float16",
    padded_rows=7,
    spare_indices=3,
    spare_pages=2,
    seed=123456789,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return dump(tmp_path_factory.mktemp("made"), "long_context", LARGE, "output")


@pytest.fixture
def copy(made, tmp_path) -> Path:
    """A dump to change."""
    return Path(shutil.copytree(made, tmp_path / made.name))


def search(case: Case, fails, contract: str = "hardened", limit: float = 60.0) -> Search:
    found = Search(case, CONTRACTS[contract], fails, limit)
    found.smallest()
    return found


def test_a_dump_gets_the_smallest_case_that_fails_in_its_way(copy, capsys):
    (copy / "notes.txt").write_text("mine")
    assert main(["minimize", str(copy), "--kernel", spec("long_context"), "--max-time", "60s"]) == 0
    after = read(copy / "case.json")
    assert after.case == Case(((1, 1, 65),))
    assert after.record.bucket == "output-boundary+lengths-key-edge+lengths-key-tiles" and after.record.reproduced
    assert after.record.finding["index"][:2] == [0, 3]
    assert after.record.strata == tuple(describe(after.case)["strata"])
    assert (copy / "notes.txt").read_text() == "mine" and (copy / "observed.safetensors").exists()
    assert "1 request of 1 query and 65 keys" in (copy / "README.md").read_text()
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(
        "6 requests, 11 queries, 131 keys; needs dtype:float16+layout:padded+lengths:empty-q+lengths:key-tiles"
        "+lengths:query-tiles+lengths:ragged+lengths:zero-run+pages:permuted+tail:padded_rows+tail:spare_indices"
        "+tail:spare_pages+values:rising"
    )
    assert said[-2].endswith("1 request, 1 query, 65 keys; needs lengths:key-edge+lengths:key-tiles")
    assert said[-1].endswith("nothing simpler fails")


def test_a_failure_of_one_variant_of_a_kernel_is_not_taken_for_that_of_another(tmp_path):
    place = dump(tmp_path, "two_paths", Case(((1, 3, 70),)), "output")
    assert place.name == "output-boundary-tiled+lengths-key-tiles+lengths-queries"
    assert minimize([place], spec("two_paths"), "cpu", 60.0) == 0
    assert read(place / "case.json").case == Case(((1, 2, 65),))
    assert "computed by the variant `tiled` of the kernel" in (place / "README.md").read_text()


def test_a_minimal_case_stays_and_gets_the_files_that_it_lacks(tmp_path, capsys):
    place = dump(tmp_path, "long_context", Case(((1, 1, 65),)), "output")
    (place / "inputs.safetensors").unlink()
    assert minimize([place], spec("long_context"), "cpu", 60.0) == 0
    assert read(place / "case.json").case == Case(((1, 1, 65),)) and (place / "inputs.safetensors").exists()
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("needs", "smallest"),
    [
        (lambda case: case.batch >= 3, Case(((3, 0, 0),))),
        (lambda case: case.total_kv >= 60, Case(((1, 0, 60),))),
        (lambda case: any(q >= 3 and kv >= 17 for _, q, kv in case.lengths), Case(((1, 3, 17),))),
        (lambda case: case.padded_rows >= 2, Case((), padded_rows=2)),
        (lambda case: case.dtype == "float16", Case((), dtype="float16")),
        (lambda case: case.layout != "contiguous", Case((), layout="fused")),
        (lambda case: True, Case(())),
    ],
)
def test_whatever_a_failure_needs_is_all_that_is_left(needs, smallest, monkeypatch):
    monkeypatch.setattr(shrink, "traits_of", lambda case: frozenset())  # wherever it leads
    assert search(LARGE, needs).best == smallest


def test_keys_go_by_whole_tiles_where_only_the_edge_of_one_fails():
    found = search(Case(((1, 2, 193),)), lambda case: case.total_kv % 64 == 1 < case.total_kv)
    assert found.best == Case(((1, 1, 65),))


def test_it_does_not_slip_into_another_failure():
    def fails(case):
        return any(kv > 64 or 0 < kv < q for _, q, kv in case.lengths)  # the second is another failure, and smaller

    assert search(LARGE, fails).best == Case(((1, 1, 65),))


def test_it_stays_within_the_contract():
    seen = []
    plain = Case(((1, 3, 5),), pages="garbage", values="nonfinite-beyond", poison="decoys")
    search(Case(((1, 3, 5),), pages="permuted", poison="decoys"), lambda case: seen.append(case) or False, "definition")
    assert seen and all(promises_needed(case) <= CONTRACTS["definition"] for case in seen)
    assert not promises_needed(plain) <= CONTRACTS["definition"]


def test_it_ends_when_its_time_is_up():
    found = search(LARGE, lambda case: True, limit=0.0)
    assert found.out_of_time and found.best == LARGE and found.tried == 0


def test_no_case_is_run_twice():
    seen = []
    search(LARGE, lambda case: seen.append(case) or case.total_kv > 20)
    assert len(seen) == len(set(seen)) < 150


def test_simpler_cases_are_simpler_in_each_way():
    cases = list(simpler(LARGE))
    for family in NAMED:
        if getattr(LARGE, family) != next(iter(FAMILIES[family])):
            assert any(getattr(case, family) == next(iter(FAMILIES[family])) for case in cases)
    assert any(case.batch < LARGE.batch for case in cases) and any(case.seed < LARGE.seed for case in cases)
    assert any(case.total_q < LARGE.total_q and case.total_kv == LARGE.total_kv for case in cases)


def test_what_does_not_fail_any_more_is_left_alone(copy, capsys):
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    assert minimize([copy], spec("right"), "cpu", 5.0) == 2
    assert "output does not fail now; try replay" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_a_lone_record_is_refused(made, tmp_path, capsys):
    shutil.copy(made / "case.json", tmp_path / "alone.json")
    assert minimize([tmp_path / "alone.json"], spec("long_context"), "cpu", 5.0) == 2
    assert "give the directory of a dump" in capsys.readouterr().err


def test_one_dump_that_cannot_be_minimized_does_not_keep_others_from_it(tmp_path, capsys):
    good = dump(tmp_path, "long_context", Case(((1, 1, 66),)), "output")
    bad = Path(shutil.copytree(good, good.parent / "bad"))
    (bad / "case.json").write_text("{}")
    assert minimize([tmp_path], spec("long_context"), "cpu", 60.0) == 2
    assert read(good / "case.json").case == Case(((1, 1, 65),))
    assert "bad" in capsys.readouterr().err
