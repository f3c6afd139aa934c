"""Runs of several machines: what each does of the whole, and what merging makes of their results."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.cli import main
from fuzz.journal import Reader
from fuzz.merge import merge
from fuzz.options import Options, Shard, UsageError
from fuzz.options import shard as parse_shard
from fuzz.report.again import write_again
from fuzz.units import CASES, Board
from tests.report_runs import FINDING, STRATA, Written, dump_of, report

ROOT = Path(__file__).parent.parent


def summary(directory: Path) -> dict:
    return json.loads((directory / "summary.json").read_text())


def written(directory: Path, index: int, count: int, *, findings: tuple[dict, ...] = (), status: int = 0) -> Written:
    run = Written(directory, shard=Shard(index, count), began=f"2026010{index + 1}-000000")
    run.judge({"output": 0.25 * (index + 1), "lse": 0.01}, *findings, seed=index + 1)
    run.end(exit_status=status)
    return run


def units(directory: Path, max_cases: int | None, shard: Shard, most: int = 100) -> list[tuple[int, int]]:
    """(number, cases) of the units that a machine does."""
    directory.mkdir()
    board = Board(directory, max_cases, shard)
    done: list[tuple[int, int]] = []
    while len(done) < most and (unit := board.claim("gw0")):
        board.done(unit)
        done.append((unit.number, unit.cases))
    return done


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_do_every_unit_once(tmp_path, count):
    max_cases = 5 * CASES + 3
    done = [units(tmp_path / str(i), max_cases, Shard(i, count)) for i in range(count)]
    assert sorted(unit for part in done for unit in part) == [*((number, CASES) for number in range(5)), (5, 3)]
    assert all(number % count == i for i in range(count) for number, _ in done[i])


def test_a_shard_without_a_limit_goes_on_with_its_own_units(tmp_path):
    assert [number for number, _ in units(tmp_path / "one", None, Shard(2, 4), most=3)] == [2, 6, 10]


@pytest.mark.parametrize("text", ["4/4", "1", "a/b", "-1/2", "0/0", "1/2/3"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ValueError, match="shard"):
        parse_shard(text)


def test_a_shard_needs_the_seed_that_all_machines_share():
    with pytest.raises(UsageError, match="same --seed"):
        Options(shard=Shard(0, 2))


def test_shards_merged_are_the_whole_run(tmp_path):
    def run(out: str, *more: str) -> None:
        arguments = ["run", "--kernel", "wrong:run", "--max-cases", "100", "--seed", "5", "-n", "1", *more]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("MLA_FUZZ", "PYTEST"))}
        ended = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "pretend_run.py"), *arguments, "--out", str(tmp_path / out)],
            env=clean | {"PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert ended.returncode == 1, ended.stdout + ended.stderr

    run("whole")
    for i in range(2):
        run(f"part{i}", "--shard", f"{i}/2")
    assert merge([tmp_path / "part0", tmp_path / "part1"], tmp_path / "merged") == 1
    whole, merged = summary(tmp_path / "whole"), summary(tmp_path / "merged")
    assert summary(tmp_path / "part0")["cases"] + summary(tmp_path / "part1")["cases"] == merged["cases"] == 100
    for name in ("kernel", "contract", "device", "seed", "cases", "strata", "checks", "stopped", "exit_status"):
        assert merged[name] == whole[name]
    assert {failure["check"] for failure in merged["failures"]} == {failure["check"] for failure in whole["failures"]}
    cases = [event["case"] for _, event in Reader(tmp_path / "merged" / "journal").new_events() if "case" in event]
    assert len(cases) >= 100


def test_the_merged_report_has_the_failures_and_the_time_of_all(tmp_path):
    written(tmp_path / "a", 0, 2)
    written(tmp_path / "b", 1, 2, findings=(FINDING,), status=1)
    assert main(["merge", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "all")]) == 1
    said = summary(tmp_path / "all")
    assert (said["cases"], said["exit_status"], said["elapsed_s"]) == (2, 1, 1.0)
    assert said["checks"]["output"] == {"cases": 2, "failed": 1, "worst_ratio": 0.5}
    assert (dump_of(tmp_path / "all", "output") / "case.json").exists()
    html = report(tmp_path / "all")
    assert "Failed: 1 failure in 2 cases" in html and "2026-01-01 00:00" in html
    write_again(tmp_path / "all")
    assert report(tmp_path / "all") == html


def test_a_worker_that_died_is_found_under_its_new_name(tmp_path):
    runs = [Written(tmp_path / name, shard=Shard(i, 2)) for i, name in enumerate("ab")]
    for run in runs:
        run.judge({"output": 0.5})
        run.begin(seed=20)
    runs[1].journal.write("died", worker="gw0")
    runs[0].end(exit_status=0)
    runs[1].end(exit_status=1)
    assert merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all") == 1
    said = summary(tmp_path / "all")
    assert [failure["check"] for failure in said["failures"]] == ["alive"]
    assert len(said["unfinished"]) == 1


def test_a_missing_shard_leaves_no_verdict(tmp_path):
    written(tmp_path / "a", 0, 3)
    written(tmp_path / "c", 2, 3)
    assert merge([tmp_path / "a", tmp_path / "c"], tmp_path / "all") == 2
    assert summary(tmp_path / "all")["errors"] == ["shards that were not merged: 1/3"]
    assert "No verdict" in report(tmp_path / "all")


def test_a_killed_run_is_merged_with_what_it_had_found(tmp_path):
    written(tmp_path / "a", 0, 2)
    killed = Written(tmp_path / "b", shard=Shard(1, 2))
    killed.judge({"output": 0.5})
    with (killed.run.journals / "gw0.jsonl").open("a") as file:
        file.write('{"event":"case","unit":0,"ph')
    assert merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all") == 2
    said = summary(tmp_path / "all")
    assert (said["cases"], said["stopped"]) == (2, "time limit, killed")
    assert "the run was killed before its end" in report(tmp_path / "all")


def test_machines_of_different_kinds_are_all_named(tmp_path):
    written(tmp_path / "a", 0, 2)
    other = Written(tmp_path / "b", shard=Shard(1, 2))
    other.journal.write(
        "device",
        device="another device",
        versions={"python": "3.11", "torch": "2.13.0"},
        strata=STRATA | {"pages:broken": ""},
    )
    other.end(exit_status=0)
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert summary(tmp_path / "all")["device"] == "a device, another device"
    assert re.search(r"python</th><td>3\.12, 3\.11</td>", report(tmp_path / "all"))
    assert "needs the promise hardened" in report(tmp_path / "a")
    assert "needs the promise hardened" not in report(tmp_path / "all")


def test_runs_that_are_no_parts_of_one_are_refused(tmp_path, capsys):
    written(tmp_path / "a", 0, 2)
    written(tmp_path / "same", 0, 2)
    Written(tmp_path / "kernel", kernel="other:run", shard=Shard(1, 2)).end(exit_status=0)
    Written(tmp_path / "count", shard=Shard(1, 3)).end(exit_status=0)
    for other, reason in (
        ("same", "did the same cases: both are shard 0/2"),
        ("kernel", "different kernels: kernel:run and other:run"),
        ("count", "different numbers of shards: 2 and 3"),
        ("absent", "no run has left its journals there"),
    ):
        assert main(["merge", str(tmp_path / "a"), str(tmp_path / other), "--out", str(tmp_path / "all")]) == 2
        assert reason in capsys.readouterr().err
    assert main(["merge", str(tmp_path / "a"), "--out", str(tmp_path / "a")]) == 2
    assert not (tmp_path / "all").exists()
    assert summary(tmp_path / "a")["cases"] == 1
