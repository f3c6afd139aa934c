"""What a run found is tried first by the next one, whichever of its workers found it."""

import json
from pathlib import Path

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase, InMemoryExampleDatabase

from fuzz.recall import Recall
from tests.test_plugin import events, run, summary

DATABASE = Path(".hypothesis/examples")


def test_cases_are_kept_once_for_each_kernel_and_check_the_shortest_first():
    database = InMemoryExampleDatabase()
    known = Recall("a.py:run", database)
    for check, case in (("output", {"x": 1000}), ("output", {"x": 1}), ("lse", {"x": 1}), ("output", {"x": 1})):
        known.remember(check, case)
    assert list(known.known()) == [("lse", {"x": 1}), ("output", {"x": 1}), ("output", {"x": 1000})]
    assert list(Recall("b.py:run", database).known()) == []
    known.forget("output", {"x": 1})
    known.forget("output", {"x": 77})
    assert list(Recall("a.py:run", database).known()) == [("lse", {"x": 1}), ("output", {"x": 1000})]


@pytest.mark.parametrize("entry", [b"\x00\xff", b"[]", b"{}", b"null", b'{"check": "lse"}'])
def test_entries_that_are_none_are_forgotten(entry):
    database = InMemoryExampleDatabase()
    known = Recall("a.py:run", database)
    known.remember("lse", {"x": 1})
    [key] = database.data
    database.save(key, entry)
    assert list(known.known()) == [("lse", {"x": 1})]
    assert len(list(database.fetch(key))) == 1


def test_without_a_database_nothing_is_known():
    known = Recall("a.py:run", None)
    known.remember("lse", {"x": 1})
    known.forget("lse", {"x": 1})
    assert list(known.known()) == []


def searched(directory: Path, out: str) -> list[dict]:
    return [event for event in events(directory, "case", out) if event["phase"] == "search"]


def test_the_next_run_tries_first_what_one_worker_found_and_reports_it_without_a_search(tmp_path):
    found = run(tmp_path, "run", "--kernel", "wrong:run", "--max-cases", "40", "--seed", "1", "-n", "2", out="first")
    assert found.returncode == 1, found.stdout + found.stderr
    buckets = {failure["bucket"] for failure in summary(tmp_path, "first")["failures"]}
    again = run(tmp_path, "run", "--kernel", "wrong:run", "--max-cases", "1", "--seed", "2", "-n", "2", out="again")
    assert again.returncode == 1, again.stdout + again.stderr
    said = summary(tmp_path, "again")
    assert {failure["bucket"] for failure in said["failures"]} == buckets and said["cases"] == 1
    shrunk = [event["case"] for event in events(tmp_path, "shrunk", "again")]
    assert shrunk[: len(buckets)] == [event["case"] for event in searched(tmp_path, "again")][: len(buckets)]
    for failure in said["failures"]:
        assert (tmp_path / "again" / failure["path"] / "inputs.safetensors").exists()


def test_what_is_known_does_not_change_what_is_generated(tmp_path):
    cases = []
    for out in ("first", "again"):
        run(tmp_path, "run", "--kernel", "wrong:run", "--max-cases", "40", "--seed", "3", "-n", "1", out=out)
        drawn = [event["case"] for event in events(tmp_path, "case", out) if event["phase"] == "generate"]
        cases.append(sorted(map(json.dumps, drawn)))
    assert cases[0] == cases[1] and len(cases[0]) == 40


def test_a_mended_kernel_lets_its_failures_be_forgotten(tmp_path):
    known = Recall("right:run", DirectoryBasedExampleDatabase(tmp_path / DATABASE))
    known.remember("output", {"x": 900, "y": 0, "kind": "a"})
    ended = run(tmp_path, "run", "--kernel", "right:run", "--max-cases", "3", "--seed", "1", "-n", "1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(searched(tmp_path, "out")) == 1 and list(known.known()) == []


def test_what_this_contract_does_not_check_is_neither_tried_nor_forgotten(tmp_path):
    known = Recall("wrong:run", DirectoryBasedExampleDatabase(tmp_path / DATABASE))
    known.remember("lse", {"x": 0, "y": 11, "kind": "b"})
    limits = ("--contract", "definition", "--without", "lse", "--max-cases", "1", "--seed", "1", "-n", "1")
    run(tmp_path, "run", "--kernel", "wrong:run", *limits)
    assert not searched(tmp_path, "out") and ("lse", {"x": 0, "y": 11, "kind": "b"}) in known.known()


def test_a_derandomized_profile_knows_nothing(tmp_path):
    Recall("wrong:run", DirectoryBasedExampleDatabase(tmp_path / DATABASE)).remember(
        "output", {"x": 900, "y": 0, "kind": "a"}
    )
    limits = ("--max-cases", "1", "--seed", "0", "-n", "0")
    run(tmp_path, "run", "--kernel", "wrong:run", *limits, HYPOTHESIS_PROFILE="ci")
    assert all(event["phase"] == "generate" for event in events(tmp_path, "case")[:1])
