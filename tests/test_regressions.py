"""The regression corpus: every case that failed once is replayed, and `promote` adds to it."""

import json
from pathlib import Path

import pytest
import torch

from fuzz.case import Case
from fuzz.cli import main
from fuzz.loading import load
from fuzz.options import UsageError
from fuzz.regressions import CORPUS, promote, recorded, still_fails
from fuzz.replay import replay
from fuzz.rig import Rig
from kernel.contract import CONTRACTS
from tests.dumping import dump, rig, spec

ROOT = Path(__file__).parent.parent
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASE = Case(((1, 1, 70),), seed=5)


@pytest.mark.parametrize("path", recorded(ROOT / CORPUS), ids=lambda path: path.stem)
def test_what_failed_once_passes(path):
    assert still_fails(path, Rig(load(), DEVICE, CONTRACTS["hardened"])) == []


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_promoted_case_is_replayed_with_whatever_kernel(repository, capsys):
    place = dump(repository / "out", "long_context", CASE, "output")
    assert main(["promote", str(place)]) == 0
    assert capsys.readouterr().out == f"tests/regressions/{place.name}.json added\n"
    [path] = recorded(CORPUS)
    assert still_fails(path, rig("right")) == []
    [message] = [message for message in still_fails(path, rig("long_context")) if message.startswith("output")]
    assert "70 keys" in message


def test_a_promoted_file_names_no_place_on_this_machine_but_the_kernel(repository):
    place = dump(repository / "out", "long_context", CASE, "output")
    promote([place])
    value = json.loads((CORPUS / f"{place.name}.json").read_text())
    assert "replay" not in value and Case.from_json(value["case"]) == CASE and value["finding"]["message"]
    assert str(repository) not in json.dumps(value)


def test_a_promoted_file_can_be_replayed_like_a_dump(repository):
    promote([dump(repository / "out", "long_context", CASE, "output")])
    [path] = recorded(CORPUS)
    assert replay([path], spec("long_context"), "cpu") == 1
    assert replay([path], spec("right"), "cpu") == 0


def test_a_case_is_added_once_and_others_of_its_bucket_beside_it(repository, capsys):
    first = dump(repository / "one", "long_context", CASE, "output")
    other = dump(repository / "two", "long_context", Case(((1, 1, 71),), seed=6), "output")
    assert promote([first, first, other]) == 0
    assert [path.stem for path in recorded(CORPUS)] == [f"{first.name}-2", first.name]
    assert "has this case already" in capsys.readouterr().out


def test_all_failures_of_a_run_are_added(repository):
    dump(repository / "out", "long_context", CASE, "output")
    dump(repository / "out", "natural_lse", CASE, "lse")
    assert promote([repository / "out"]) == 0 and len(recorded(CORPUS)) == 2


def test_what_is_no_dump_is_refused(repository, capsys):
    place = dump(repository / "out", "long_context", CASE, "output")
    (place / "case.json").write_text("{}")
    assert promote([place]) == 2 and recorded(CORPUS) == []
    assert "schema version" in capsys.readouterr().err


def test_promote_works_at_the_root_of_a_repository_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="there is no tests/ here"):
        promote([tmp_path])


def test_a_regression_that_needs_a_promise_the_kernel_does_not_make_says_so(repository):
    promote([dump(repository / "out", "natural_lse", Case(((1, 1, 1),), index_dtype="int64"), "lse")])
    [path] = recorded(CORPUS)
    with pytest.raises(ValueError, match="needs the promise int64-indices"):
        still_fails(path, rig("right", "definition"))


def test_a_corpus_that_does_not_exist_is_empty(tmp_path):
    assert recorded(tmp_path / "none") == []
