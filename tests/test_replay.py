"""`python -m fuzz replay` from the command line, and its answers."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz import replay as replaying
from fuzz.case import Case
from fuzz.cli import main
from fuzz.reading import read
from fuzz.replay import replay, run_again
from tests.dumping import dump, rig, spec

ROOT = Path(__file__).parent.parent
LONG = Case(((1, 2, 70),), seed=5)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return dump(tmp_path_factory.mktemp("made"), "long_context", LONG, "output")


def command_line(*arguments: object, cwd: Path) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MLA_FUZZ")}
    return subprocess.run(
        [sys.executable, "-m", "fuzz", *map(str, arguments)],
        cwd=cwd,
        env=clean | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
    )


def test_a_dump_moved_elsewhere_fails_there_as_it_did_here(made, tmp_path):
    moved = Path(shutil.copytree(made, tmp_path / "another machine" / "bug"))
    ended = command_line("replay", "another machine/bug", "--kernel", spec("long_context"), cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == f"FAILED {made.name} (another machine/bug)"
    assert (
        "output failed in 5 of 5 runs" in lines[1]
        and lines[2].strip() == read(moved / "case.json").record.finding["message"]
    )
    assert lines[3].endswith(": the same") and ended.stderr == ""


def test_a_kernel_that_was_mended_is_fixed(made, capsys):
    assert main(["replay", str(made), "--kernel", spec("right")]) == 0
    assert capsys.readouterr().out.startswith(f"FIXED {made.name}")


def test_a_kernel_that_fails_now_and_then_is_flaky(tmp_path, capsys):
    place = dump(tmp_path, "moody", LONG, "lse")
    assert replay([place], spec("moody"), "cpu") == 1
    said = capsys.readouterr().out
    assert said.startswith("FLAKY lse") and " of 5 runs" in said


def test_a_kernel_that_fails_another_check_has_failed(made, capsys):
    assert replay([made], spec("natural_lse"), "cpu") == 1
    said = capsys.readouterr().out
    assert said.startswith("FAILED") and "output failed in 0 of 5 runs" in said
    assert "another check fails now: lse:" in said


def test_another_value_than_recorded_is_told(made, capsys):
    changed = read(made / "case.json")
    finding = changed.record.finding | {"got": 123.5}
    answer = run_again(replace(changed, record=replace(changed.record, finding=finding)), rig("long_context"))
    assert answer.verdict == "FAILED" and answer.lines[2].endswith("the same element, got 123.5 then")


def test_an_exception_is_a_failure_as_any_other(tmp_path, capsys):
    place = dump(tmp_path, "raising", Case(((2, 1, 1),)), "alive")
    assert replay([place], spec("raising"), "cpu") == 1
    assert replay([place], spec("right"), "cpu") == 0
    assert "ValueError: one request only" in capsys.readouterr().out


def test_the_directory_of_a_run_and_a_lone_record_can_be_replayed(made, tmp_path, capsys):
    run = made.parent.parent
    assert replay([run], spec("long_context"), "cpu") == 1
    assert replay([run / "failures"], spec("long_context"), "cpu") == 1
    shutil.copy(made / "case.json", tmp_path / "renamed.json")
    assert replay([tmp_path / "renamed.json"], spec("right"), "cpu") == 0
    assert capsys.readouterr().out.count(made.name) > 3


def test_the_worst_answer_is_the_exit_status(made, tmp_path, capsys):
    assert replay([made, tmp_path / "absent"], spec("right"), "cpu") == 2
    assert replay([tmp_path / "absent", made], spec("long_context"), "cpu") == 2
    captured = capsys.readouterr()
    assert captured.out.count("FIXED") == captured.out.count("FAILED") == 1
    assert captured.err.count("absent: there is no such file or directory") == 2


def test_a_dump_may_not_choose_what_is_run(made, tmp_path, monkeypatch, capsys):
    place = Path(shutil.copytree(made, tmp_path / "bug"))
    (place / "evil.py").write_text("raise SystemExit(77)")
    value = json.loads((place / "case.json").read_text()) | {"kernel": "evil.py:run"}
    (place / "case.json").write_text(json.dumps(value))
    monkeypatch.chdir(place)
    assert main(["replay", "."]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.splitlines()
    assert line.startswith("mla-fuzz: ERROR case.json: ") and line.endswith("add --kernel evil.py:run")


@pytest.mark.parametrize("name", ["nothing:run", "tests/wrong_kernels.py:absent"])
def test_a_kernel_that_cannot_be_loaded_is_an_error(made, name, capsys):
    assert replay([made], name, "cpu") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--kernel" in line


def test_a_judge_that_raises_is_an_error_of_one_line(made, capsys, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("out of memory\nby far")

    monkeypatch.setattr("fuzz.rig.judge", broken)
    assert replay([made], spec("right"), "cpu") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "it cannot be judged: RuntimeError: out of memory (broken)" in line


def test_slow_cases_are_run_twice_at_least(made, monkeypatch):
    monkeypatch.setattr(replaying, "PATIENCE", 0.0)
    assert "2 of 2 runs" in run_again(read(made / "case.json"), rig("long_context")).lines[0]


def test_a_run_that_found_nothing_has_nothing_to_replay(tmp_path, capsys):
    (tmp_path / "failures").mkdir()
    assert replay([tmp_path], None, "cpu") == 2
    assert "the run left no failures" in capsys.readouterr().err
