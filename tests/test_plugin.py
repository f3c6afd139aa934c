"""A fuzz run from outside: exit status, time limits, the same cases for any number of workers, nothing ever lost."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fuzz.journal import Reader
from fuzz.machine import choose_device, visible_gpus
from fuzz.units import CASES

ROOT = Path(__file__).parent.parent


def command(directory: Path, *arguments: str, out: str = "out") -> list[str]:
    return [sys.executable, str(ROOT / "tests" / "pretend_run.py"), *arguments, "--out", str(directory / out)]


def environment(**variables: str) -> dict[str, str]:
    # without cached bytecode, pytest would rewrite all of Hypothesis' assertions in each process
    unwanted = ("MLA_FUZZ", "PYTEST", "HYPOTHESIS", "PYTHONDONTWRITEBYTECODE")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return clean | {"PYTHONPATH": str(ROOT)} | variables


def run(directory: Path, *arguments: str, out: str = "out", **variables: str) -> subprocess.CompletedProcess:
    """A run of pretended kernels in a process of its own."""
    return subprocess.run(
        command(directory, *arguments, out=out),
        cwd=directory,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=90,
    )


def heeds_interrupts() -> None:
    """For a child process: tests that a shell started in the background, and so their children, ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(directory: Path, *arguments: str, **variables: str) -> subprocess.Popen:
    """The same in the background, once a few cases have run."""
    process = subprocess.Popen(
        command(directory, *arguments),
        cwd=directory,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=heeds_interrupts,
    )
    until = time.monotonic() + 60
    while len(events(directory, "verdict")) < 10:
        assert process.poll() is None and time.monotonic() < until, process.communicate()[0]
        time.sleep(0.05)
    return process


def summary(directory: Path, out: str = "out") -> dict:
    return json.loads((directory / out / "summary.json").read_text())


def events(directory: Path, kind: str, out: str = "out") -> list[dict]:
    return [event for _, event in Reader(directory / out / "journal").new_events() if event["event"] == kind]


def generated(directory: Path, out: str) -> list[str]:
    """The generated cases of a run, in no order."""
    cases = [event["case"] for event in events(directory, "case", out) if event["phase"] == "generate"]
    return sorted(json.dumps(case) for case in cases)


LIMIT = 2 * CASES + 5


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    """The directory of a run that finds nothing, and how its process ended."""
    directory = tmp_path_factory.mktemp("clean")
    limits = ("--max-cases", str(LIMIT), "--seed", "7", "-n", "2")
    return directory, run(directory, "run", "--kernel", "right:run", *limits)


def test_a_run_that_finds_nothing_exits_with_0_and_says_what_it_did(clean):
    directory, ended = clean
    assert ended.returncode == 0, ended.stdout + ended.stderr
    header = f"--kernel right:run --contract definition --profile default --max-cases {LIMIT} --seed 7 --device "
    assert f"mla-fuzz: {header}{choose_device('auto', visible_gpus())}" in ended.stdout
    assert f"mla-fuzz: 0 failures in {LIMIT} cases" in ended.stdout
    said = summary(directory)
    assert said["schema"] == 1 and said["kernel"] == "right:run" and said["contract"] == "definition"
    assert said["device"] == "a pretended device" and said["seed"] == 7 and said["exit_status"] == 0
    assert said["cases"] == LIMIT and said["failures"] == [] and said["errors"] == [] and said["unfinished"] == []
    assert said["stopped"] == "all cases done"
    assert said["cases_per_s"] == pytest.approx(LIMIT / said["elapsed_s"], rel=0.01)
    assert set(said["strata"]) == {"values:a", "values:b", "values:c"}
    assert sum(stratum["cases"] for stratum in said["strata"].values()) == LIMIT
    worst = max(stratum["worst_output_ratio"] for stratum in said["strata"].values())
    assert said["checks"]["output"] == {"cases": LIMIT, "failed": 0, "worst_ratio": worst}
    assert 0 < worst <= 0.5 and said["checks"]["lse"]["worst_ratio"] is None
    junit = ElementTree.parse(directory / "out" / "junit.xml").getroot().find("testsuite")
    assert junit.attrib["tests"] == "3" and junit.attrib["failures"] == "0"


def test_one_seed_gives_the_same_cases_with_any_number_of_workers_and_another_seed_gives_others(clean, tmp_path):
    for out, workers, seed in (("none", "0", "7"), ("one", "1", "7"), ("other", "0", "4")):
        limits = ("--max-cases", str(LIMIT), "--seed", seed, "-n", workers)
        assert run(tmp_path, "run", "--kernel", "right:run", *limits, out=out).returncode == 0
    cases = generated(clean[0], "out")
    assert len(cases) == LIMIT
    assert cases == generated(tmp_path, "none") == generated(tmp_path, "one")
    assert len(set(cases) & set(generated(tmp_path, "other"))) < CASES


def test_each_failure_is_shrunk_into_a_bucket_of_its_own_and_the_run_goes_on(tmp_path):
    ended = run(tmp_path, "run", "--kernel", "wrong:run", "--max-cases", "120", "--seed", "1", "-n", "2")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    said = summary(tmp_path)
    assert said["cases"] == 120 and said["exit_status"] == 1
    assert [(failure["bucket"], failure["check"], failure["stratum"]) for failure in said["failures"]] == [
        ("lse-boundary+values-b", "lse", "values:b"),
        ("output-interior", "output", "any"),
    ]
    for failure in said["failures"]:
        assert failure["path"] == f"failures/{failure['bucket']}"
        assert failure["replay"] == f"python -m fuzz replay {tmp_path}/out/{failure['path']} --kernel wrong:run"
        assert failure["replay"] in ended.stdout
        assert failure["cases"] == said["checks"][failure["check"]]["failed"] > 10
    smallest = json.loads((tmp_path / "out" / "failures" / "lse-boundary+values-b" / "case.json").read_text())
    assert smallest["case"] == {"x": 0, "y": 11, "kind": "b"}
    smallest = json.loads((tmp_path / "out" / "failures" / "output-interior" / "case.json").read_text())
    assert smallest["case"] == {"x": 101, "y": 0, "kind": "a"}
    assert smallest["finding"]["ratio"] == "inf"
    junit = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot().find("testsuite")
    failed = {case.attrib["name"]: case for case in junit if case.find("failure") is not None}
    assert set(failed) == {"lse-boundary+values-b", "output-interior"}
    properties = {p.attrib["name"]: p.attrib["value"] for p in failed["output-interior"].find("properties")}
    assert properties["ratio"] == "inf" and properties["replay"].startswith("python -m fuzz replay")


def test_workers_that_the_kernel_kills_are_replaced_and_every_case_is_counted(tmp_path):
    ended = run(tmp_path, "run", "--kernel", "deadly:run", "--max-cases", "24", "--seed", "5", "-n", "2")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    said = summary(tmp_path)
    cases = [event["case"] for event in events(tmp_path, "case")]
    killers = [case for case in cases if case["x"] % 5 == 0]
    assert said["cases"] == len(cases) == 24
    assert [failure["check"] for failure in said["failures"]] == ["alive"]
    assert said["failures"][0]["cases"] == said["checks"]["alive"]["failed"] == len(killers) > 1


def test_max_time_bounds_the_whole_run(tmp_path):
    started = time.monotonic()
    ended = run(tmp_path, "run", "--kernel", "right:run", "--max-time", "15s", "-n", "2", PRETENDED_SECONDS="0.05")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert 6 < time.monotonic() - started < 15 + 5
    said = summary(tmp_path)
    assert said["stopped"] == "time limit" and said["cases"] > 0 and said["unfinished"] == []
    assert said["elapsed_s"] < 17


def test_a_worker_that_hangs_is_killed_after_the_deadline_and_the_rest_is_kept(tmp_path):
    started = time.monotonic()
    ended = run(tmp_path, "run", "--kernel", "hanging:run", "--max-time", "10s", "-n", "2", PRETENDED_GRACE="1")
    assert time.monotonic() - started < 10 + 10
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = summary(tmp_path)
    assert said["cases"] > 0 and len(said["unfinished"]) == 2
    assert all(case["x"] > 200 for case in said["unfinished"])
    assert "workers that did not end in time were killed" in ended.stdout and "replacing" not in ended.stdout


def test_a_case_that_hangs_is_a_failure_and_its_worker_is_replaced(tmp_path):
    limits = ("--max-cases", "6", "--seed", "2", "-n", "2")
    ended = run(tmp_path, "run", "--kernel", "hanging:run", *limits, PRETENDED_PATIENCE="0.5")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    said = summary(tmp_path)
    hangs = sum(event["case"]["x"] > 200 for event in events(tmp_path, "case"))
    assert said["cases"] == 6 and said["checks"]["alive"]["failed"] == hangs > 0
    assert "the kernel did not return" in ended.stdout


def test_a_hang_in_the_only_process_ends_too(tmp_path):
    ended = run(tmp_path, "run", "--kernel", "hanging:run", "--max-time", "5s", "-n", "0", PRETENDED_GRACE="1")
    assert ended.returncode == 0 and "hung after its time limit" in ended.stdout, ended.stdout + ended.stderr
    assert summary(tmp_path)["stopped"] == "time limit"


def test_a_run_without_a_single_case_is_no_success(tmp_path):
    ended = run(tmp_path, "run", "--kernel", "right:run", "--max-time", "0.5s", "-n", "0")
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert "0 failures in 0 cases" in ended.stdout
    assert summary(tmp_path)["exit_status"] == 2


@pytest.mark.parametrize(("kernel", "status"), [("right:run", 2), ("wrong:run", 1)])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_run_ends_at_once_with_its_summary(tmp_path, kernel, status, number):
    process = start(tmp_path, "run", "--kernel", kernel, "-n", "2", PRETENDED_SECONDS="0.05")
    interrupted = time.monotonic()
    os.killpg(process.pid, number) if number is signal.SIGINT else process.send_signal(number)
    output = process.communicate(timeout=30)[0]
    assert time.monotonic() - interrupted < 8
    assert process.returncode == status, output
    said = summary(tmp_path)
    assert said["stopped"] == "interrupted" and said["exit_status"] == status and said["cases"] >= 1
    assert "results: " in output


def test_a_killed_run_loses_nothing_that_it_had_found(tmp_path):
    process = start(tmp_path, "run", "--kernel", "wrong:run", "-n", "2", PRETENDED_SECONDS="0.02")
    process.kill()
    process.communicate(timeout=30)
    assert not (tmp_path / "out" / "summary.json").exists()
    assert run(tmp_path, "run", "--kernel", "right:run", "--max-cases", "5", "-n", "0").returncode == 0
    assert summary(tmp_path)["failures"] == []
    [earlier] = (tmp_path / "out" / "earlier").iterdir()
    said = json.loads((earlier / "summary.json").read_text())
    assert said["stopped"] == "killed" and said["exit_status"] == 1 and said["cases"] >= 1
    assert {failure["check"] for failure in said["failures"]} >= {"output"}
    for failure in said["failures"]:
        assert (earlier / failure["path"] / "case.json").exists()


def test_max_failures_ends_the_run_when_that_many_different_failures_are_shrunk(tmp_path):
    limits = ("--max-failures", "1", "--max-time", "60s", "--seed", "1", "-n", "0")
    ended = run(tmp_path, "run", "--kernel", "wrong:run", *limits)
    assert ended.returncode == 1
    said = summary(tmp_path)
    assert said["stopped"] == "1 failure found" and said["elapsed_s"] < 30
    assert "output-interior" in {failure["bucket"] for failure in said["failures"]}


def test_a_judge_that_raises_is_an_error_and_no_failure_of_the_kernel(tmp_path):
    ended = run(tmp_path, "run", "--kernel", "broken:run", "--max-cases", "200", "-n", "0")
    assert ended.returncode == 2, ended.stdout
    assert "RuntimeError: the judge is broken" in ended.stdout
    said = summary(tmp_path)
    assert said["failures"] == [] and len(said["errors"]) == 1 and said["exit_status"] == 2


def test_a_kernel_that_cannot_be_loaded_is_one_line_and_exit_status_2(tmp_path):
    ended = run(tmp_path, "run", "--kernel", "refused:run", "-n", "2")
    assert ended.returncode == 2
    said = "--kernel refused:run: refused has no 'run'"
    assert ended.stdout.count(said) == 1 and "mla-fuzz: the run could not be done" in ended.stdout
    assert summary(tmp_path)["errors"] == [said]


def test_a_kernel_that_is_not_there_is_said_before_anything_begins(tmp_path):
    ended = run(tmp_path, "run", "--kernel", "absent:run", "-n", "2")
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr == "Exit: mla-fuzz: --kernel absent:run: there is no module 'absent' on the path\n"
    assert not (tmp_path / "out").exists()


def test_workers_that_die_while_the_kernel_is_loaded_end_the_run(tmp_path):
    ended = run(tmp_path, "run", "--kernel", "stillborn:run", "-n", "2")
    assert ended.returncode == 2, ended.stdout
    assert "workers died before their first case" in ended.stdout


def test_a_second_run_in_the_same_directory_at_the_same_time_is_refused(tmp_path):
    process = start(tmp_path, "run", "--kernel", "right:run", "-n", "0", PRETENDED_SECONDS="0.05")
    ended = run(tmp_path, "run", "--kernel", "right:run", "-n", "0")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert ended.returncode == 2
    assert f"{tmp_path}/out: another run is writing there" in ended.stderr


def test_options_come_from_the_environment_too_and_the_header_shows_them(tmp_path):
    twins = {"MLA_FUZZ_KERNEL": "right:run", "MLA_FUZZ_MAX_CASES": "6", "MLA_FUZZ_SEED": "5", "MLA_FUZZ_WORKERS": "1"}
    ended = run(tmp_path, "run", "--seed", "8", **twins)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "mla-fuzz: environment: MLA_FUZZ_KERNEL=right:run MLA_FUZZ_MAX_CASES=6 MLA_FUZZ_SEED=5" in ended.stdout
    assert summary(tmp_path)["cases"] == 6 and summary(tmp_path)["seed"] == 8


def test_pytest_takes_the_same_options_and_collects_the_suite_alone(tmp_path):
    (tmp_path / "test_other.py").write_text("def test_other(): assert False\n")
    ended = run(tmp_path, "pytest", "--kernel", "wrong:run", "--max-cases", "40", "--seed", "1", "-n", "2")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "test_other" not in ended.stdout
    assert summary(tmp_path)["cases"] == 40
    assert [failure["check"] for failure in summary(tmp_path)["failures"]] == ["lse", "output"]


def test_pytest_with_fuzz_options_and_paths_elsewhere_is_refused(tmp_path):
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    ended = run(tmp_path, "pytest", "test_other.py", "--seed", "1")
    assert ended.returncode == 2
    assert "--seed, --out: none of the paths given leads to suite/" in ended.stderr


NIGHT = """
import sys
sys.argv = ["pytest"]
from hypothesis import settings
from fuzz import profiles
profiles.register()
for name in ("nightly", "ci"):
    profiles.load(name)
    now = settings.default
    print(name, now.derandomize, type(now.database).__name__, now.deadline, profiles.seed_of_a_run())
"""


def test_under_ci_the_nightly_profile_is_still_random_and_has_a_database_and_two_nights_differ():
    def night() -> list[str]:
        command = [sys.executable, "-c", NIGHT]
        return subprocess.run(
            command, env=environment(CI="true"), cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()

    (first, first_ci), (second, second_ci) = night(), night()
    assert first.startswith("nightly False DirectoryBasedExampleDatabase None ")
    assert first.split()[:4] == second.split()[:4] and first.split()[4] != second.split()[4]
    assert first_ci == second_ci == "ci True NoneType None 0"
