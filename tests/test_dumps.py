"""failures/ of a run: the smallest case of each bucket, at any time."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fuzz.dumps import Dumps
from fuzz.files import write_json
from fuzz.journal import Journal
from fuzz.options import Options
from fuzz.reading import read
from fuzz.reproducer import FACTS, evidence_name
from fuzz.run import Run
from fuzz.totals import Totals
from tests.dumping import spec
from tests.test_plugin import start

ROOT = Path(__file__).parent.parent


@pytest.fixture
def run(tmp_path) -> Run:
    (tmp_path / "journal").mkdir()
    return Run(Options(kernel="mine.py:run"), 1, "cpu", tmp_path, 0.0, None, None, 1, 1)


class Found:
    """A run that finds failures of the check output, one after the other."""

    def __init__(self, run: Run) -> None:
        self._run, self._dumps, self._totals = run, Dumps(run), Totals(run.journals)
        self._began = 0

    def failing(self, traits: str, size: int, *, searched: bool = False) -> None:
        finding = {"check": "output", "detail": "wrong", "index": [0, 0, 0], "rows": "interior"}
        case = {"case": {"size": size}, "strata": [], "traits": traits.split(), "size": [size]}
        if searched:
            self._began += 1
            event = case | {"began_with": [f"began:{self._began}"], "finding": finding}
            Journal(self._run.journals, "gw0.found").write("shrunk", worker="gw0", **event)
        else:
            Journal(self._run.journals, "gw0").write("case", unit=0, phase="generate", at=1.0, **case)
            Journal(self._run.journals, "gw0").write("verdict", ran={}, findings=[finding], ms=1)

    def evidence(self, size: int, **facts: object) -> None:
        place = self._run.evidence / evidence_name("output", {"size": size})
        place.mkdir(parents=True)
        (place / "inputs.safetensors").write_text(f"tensors of {size}")
        write_json(place / FACTS, {"reproduced": True, "findings": [], "wrong": {}} | facts)

    def dumps(self) -> dict[str, dict]:
        """The records of all dumps, by the names of their directories."""
        self._totals.update()
        self._dumps.update(self._totals)
        return {place.name: json.loads((place / "case.json").read_text()) for place in self._run.failures.iterdir()}


@pytest.fixture
def found(run) -> Found:
    return Found(run)


def test_a_failure_is_dumped_before_it_is_shrunk_and_again_when_it_is(found, run):
    found.failing("values:b", 7)
    assert found.dumps()["output-interior+unshrunk"]["case"] == {"size": 7}
    found.failing("values:b", 5)
    assert found.dumps()["output-interior+unshrunk"]["case"] == {"size": 5}
    found.failing("values:b", 2, searched=True)
    assert found.dumps().keys() == {"output-interior+values-b"}


def test_evidence_joins_the_dump_when_it_is_there(found, run):
    found.failing("values:b", 2, searched=True)
    assert found.dumps()["output-interior+values-b"]["reproduced"] is None
    other = {"check": "lse", "detail": "wrong too"}
    found.evidence(2, reproduced=False, findings=[{"check": "output", "detail": "wrong"}, other])
    record = found.dumps()["output-interior+values-b"]
    assert record["reproduced"] is False and record["others"] == [other]
    place = run.failures / "output-interior+values-b"
    assert (place / "inputs.safetensors").read_text() == "tensors of 2"
    assert "It did not fail again" in (place / "README.md").read_text()


def test_a_smaller_case_of_a_bucket_takes_its_dump_over(found, run):
    found.failing("values:b", 4, searched=True)
    found.evidence(4)
    found.dumps()
    found.failing("values:b lengths:key-edge", 3, searched=True)
    assert found.dumps()["output-interior+values-b"]["case"] == {"size": 3}
    assert not (run.failures / "output-interior+values-b" / "inputs.safetensors").exists()


def test_an_edge_that_another_case_shows_to_be_chance_leaves_the_name(found):
    found.failing("lengths:key-tiles lengths:key-edge", 65, searched=True)
    assert found.dumps().keys() == {"output-interior+lengths-key-edge+lengths-key-tiles"}
    found.failing("lengths:key-tiles lengths:queries", 67, searched=True)
    assert {name: record["case"] for name, record in found.dumps().items()} == {
        "output-interior+lengths-key-tiles": {"size": 65}
    }


def test_what_has_not_changed_is_not_written_again(found, run):
    found.failing("values:b", 2, searched=True)
    found.dumps()
    before = (run.failures / "output-interior+values-b" / "case.json").stat()
    found.dumps()
    assert (run.failures / "output-interior+values-b" / "case.json").stat().st_ino == before.st_ino


def test_a_killed_run_leaves_its_dumps(tmp_path):
    process = start(tmp_path, "run", "--kernel", "wrong:run", "-n", "2", PRETENDED_SECONDS="0.02")
    place = tmp_path / "out" / "failures" / "lse-boundary+values-b"
    until = time.monotonic() + 60
    while not (place / "inputs.safetensors").exists() and time.monotonic() < until:
        time.sleep(0.1)
    process.kill()
    process.communicate(timeout=30)
    assert {path.name for path in place.iterdir()} == {"case.json", "README.md", "inputs.safetensors"}
    assert not (tmp_path / "out" / "summary.json").exists()


def test_a_run_of_the_suite_leaves_dumps_that_replay_elsewhere(tmp_path):
    def command_line(*arguments: str) -> subprocess.CompletedProcess:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("MLA_FUZZ", "PYTEST"))}
        return subprocess.run(
            [sys.executable, "-m", "fuzz", *arguments, "--kernel", spec("natural_lse")],
            cwd=tmp_path,
            env=clean | {"PYTHONPATH": str(ROOT), "MLA_FUZZ_DEVICE": "cpu"},
            capture_output=True,
            text=True,
            timeout=180,
        )

    ended = command_line("run", "--max-cases", "12", "--seed", "4", "-n", "0", "--out", "out")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    said = json.loads((tmp_path / "out" / "summary.json").read_text())
    [failure] = said["failures"]
    assert failure["bucket"] == "lse-boundary" and failure["stratum"] == "any"
    moved = Path(shutil.move(tmp_path / "out" / failure["path"], tmp_path / "moved"))
    dump = read(moved / "case.json")
    assert dump.case.lengths == ((1, 1, 1),) and dump.record.reproduced and dump.record.kernel == spec("natural_lse")
    assert (moved / "observed.safetensors").exists() and (moved / "workload.jsonl").exists()
    again = command_line("replay", "moved")
    assert again.returncode == 1 and again.stdout.startswith("FAILED lse-boundary"), again.stderr
