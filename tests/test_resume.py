"""Going on with a run that ended early: no case is lost, none is done twice, those that were in flight are named."""

import os
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from fuzz.journal import Journal
from fuzz.options import Shard
from fuzz.resume import heard
from fuzz.units import CASES, Board
from tests.test_plugin import command, environment, events, generated, run, start, summary


def resume(directory: Path, *arguments: str) -> subprocess.CompletedProcess:
    """A run without --out, which `tests.test_plugin.run` would add."""
    words = command(directory, "run", *arguments)[:-2]
    return subprocess.run(words, cwd=directory, env=environment(), capture_output=True, text=True, timeout=90)


def case(journal: Journal, unit: int, at: float, phase: str = "generate") -> None:
    journal.write("case", unit=unit, phase=phase, at=at, case={"x": at}, strata=[], traits=[], size=[1])


def claims(board: Board, most: int = 20) -> list[tuple[int, tuple[str, ...]]]:
    taken = []
    while len(taken) < most and (unit := board.claim("new")):
        taken.append((unit.number, unit.died))
    return taken


def test_a_killed_run_that_is_resumed_is_the_whole_run(tmp_path):
    options = ("--kernel", "wrong:run", "--max-cases", str(4 * CASES), "--seed", "4", "-n", "2")
    process = start(tmp_path, "run", *options, PRETENDED_SECONDS="0.05")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    before = len(events(tmp_path, "verdict"))
    ended = run(tmp_path, "run", "--resume", str(tmp_path / "out"), "-n", "2")
    assert ended.returncode == 2 and "--out cannot change" in ended.stderr
    ended = resume(tmp_path, "--resume", "out", "-n", "2")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    told = summary(tmp_path)
    assert told["cases"] == 4 * CASES > before and told["stopped"] == "all cases done"
    assert 1 <= len(told["lost"]) <= 2 and all(one["why"] == "the run was killed" for one in told["lost"])
    assert "run again, as the run was killed: " in ended.stdout
    assert "In flight when its worker was lost" in (tmp_path / "out" / "report.html").read_text()
    run(tmp_path, "run", *options, out="whole")
    assert set(generated(tmp_path, "out")) == set(generated(tmp_path, "whole"))
    whole = summary(tmp_path, "whole")
    for name in ("cases", "strata", "checks", "exit_status"):
        assert told[name] == whole[name]
    assert [one["bucket"] for one in told["failures"]] == [one["bucket"] for one in whole["failures"]]


def test_what_killed_its_worker_is_not_run_again_but_what_was_lost_is(tmp_path):
    first, second = Journal(tmp_path, "gw0"), Journal(tmp_path, "gw1")
    case(first, 0, 1.0)
    case(second, 1, 2.0)
    Journal(tmp_path, "controller").write("died", worker="gw1")
    left = heard(sorted(tmp_path.glob("*.jsonl")))
    assert left.in_flight() == ["gw0"] and left.elapsed == 2.0
    first.write("lost", why="the run was killed")
    assert heard(sorted(tmp_path.glob("*.jsonl"))).in_flight() == []


def test_units_that_are_not_done_for_sure_are_given_out_first(tmp_path):
    first, second, third = (Journal(tmp_path, f"gw{i}") for i in range(3))
    for number, (journal, unit) in enumerate([(first, 1), (second, 4), (first, 10), (second, 13), (third, 4)]):
        case(journal, unit, float(number))
        journal.write("verdict", ran={}, findings=[], ms=1.0)
    case(first, 99, 9.0, "search")
    # 1 is done, as its worker went on; 7 was given out to one that wrote nothing
    board = Board(tmp_path, 20 * CASES, Shard(1, 3))
    board.take_up(*heard(sorted(tmp_path.glob("*.jsonl"))).units())
    taken = claims(board)
    assert taken == [(4, ("gw1", "gw2")), (7, ()), (10, ("gw0",)), (13, ("gw1",)), (16, ()), (19, ())]


def test_a_run_that_had_not_begun_a_unit_begins_with_the_first(tmp_path):
    board = Board(tmp_path, 3 * CASES, Shard(1, 2))
    board.take_up({}, set())
    assert claims(board) == [(1, ())]


def test_half_a_line_is_cut_off_so_that_the_next_one_is_whole(tmp_path):
    journal = Journal(tmp_path, "gw0")
    case(journal, 0, 1.0)
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + b'{"event":"verd')
    heard([journal.path])
    assert journal.path.read_bytes() == whole


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--resume", "nowhere"], "no run has left its journals there"),
        pytest.param(
            ["--resume", "nowhere", "--ray", "local"],
            "no run has left its journals there",
            marks=pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
        ),
    ],
)
def test_what_cannot_be_resumed_is_said_in_a_line(arguments, complaint, tmp_path):
    ended = resume(tmp_path, *arguments)
    assert ended.returncode == 2 and complaint in ended.stderr
