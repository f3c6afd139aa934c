"""The command line and the options: what is wrong with them is said in one line, with exit status 2."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fuzz import machine
from fuzz.claims import Claim
from fuzz.cli import main
from fuzz.options import TABLE, Options, Shard, UsageError, given
from fuzz.outdir import occupied
from fuzz.parsers import duration
from kernel.contract import CONTRACTS
from reference.profile import PROFILES
from tests.report_runs import Written

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def no_twins(monkeypatch):
    for option in TABLE:
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.delenv("MLA_FUZZ_WORKERS", raising=False)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("8h", 28800), ("1h30m", 5400), ("45", 45), ("1.5m", 90), ("2m5s", 125)],
)
def test_times_are_written_as_people_write_them(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "10 m", "-5s", "5d", "1m1h", "0", "0s", "nan"])
def test_other_times_are_refused(text):
    with pytest.raises(ValueError, match=r"is not a time|leaves no time"):
        duration(text)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--max-time", "soon"], "argument --max-time: 'soon' is not a time; write 90s, 10m, 8h or 1h30m"),
        (["--max-cases", "0"], "argument --max-cases: 0 is less than 1"),
        (["--max-cases", "many"], "argument --max-cases: 'many' is not a whole number"),
        (["--seed", "-1"], "argument --seed: -1 is less than 0"),
        (["--contract", "strict"], "argument --contract: 'strict' is none of definition, serving, hardened"),
        (["--device", "tpu"], "argument --device: 'tpu' is none of auto, cpu, cuda"),
        (["--strata", ","], "argument --strata: a comma-separated list of names is needed"),
        (["-n", "two"], "argument -n/--workers: 'two' is neither auto nor a number"),
        (["--max-tim"], "argument --max-time: expected one argument"),
        (["--unheard-of"], "unrecognized arguments: --unheard-of"),
    ],
)
def test_a_bad_argument_is_exit_status_2_and_a_line_that_names_it(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(complaint)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["mutants", "-n", "two"], "argument -n: 'two' is neither auto nor a number"),
        (["mutants", "--sample", "0"], "argument --sample: 0 is less than 1"),
        (["mutants", "--max-time", "soon"], "'soon' is not a time; write 90s, 10m, 8h or 1h30m"),
        (["merge", "here"], "the following arguments are required: --out"),
        (["replay"], "the following arguments are required: PATH"),
    ],
)
def test_the_other_commands_say_it_in_the_same_way(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(complaint)


def test_more_workers_than_the_machine_can_bear_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: range(2))
    complaint = "mla-fuzz: -n 100000: 32 workers at most, as this machine has 2 cores\n"
    for command in ("run", "mutants"):
        assert main([command, "-n", "100000"]) == 2
        assert capsys.readouterr().err == complaint


def test_a_file_in_place_of_a_directory_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["merge", str(tmp_path / "file"), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"mla-fuzz: {tmp_path}/file: no run has left its journals there\n"
    with pytest.raises(UsageError, match="file: there is a file in the way"), occupied(tmp_path / "file", keep=True):
        pass


def test_where_mutants_cannot_write_is_said_before_they_are_tried(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("no marks")
    for arguments, complaint in (
        (["--out", "file"], "mla-fuzz: file: File exists"),
        (["--write", "absent.md"], "mla-fuzz: absent.md: No such file or directory"),
        (["--write", "file"], "mla-fuzz: --write file: the document has no lines <!-- python -m fuzz mutants "),
    ):
        assert main(["mutants", "--device", "cpu", *arguments]) == 2
        assert capsys.readouterr().err.startswith(complaint)


def test_whoever_stops_reading_the_output_sees_no_traceback(tmp_path):
    Written(tmp_path / "run").end(exit_status=0)
    command = [sys.executable, "-m", "fuzz", "report", str(tmp_path / "run")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 2


@pytest.mark.parametrize(
    ("variable", "text", "complaint"),
    [
        ("MLA_FUZZ_MAX_TIME", "soon", "'soon' is not a time"),
        ("MLA_FUZZ_SEED", "x", "'x' is not a whole number"),
        ("MLA_FUZZ_WORKERS", "many", "'many' is neither auto nor a number"),
        ("MLA_FUZZ_MAXTIME", "5s", "there is no such option; there are MLA_FUZZ_KERNEL"),
    ],
)
def test_a_bad_environment_twin_is_exit_status_2_and_named(variable, text, complaint, monkeypatch, capsys):
    monkeypatch.setenv(variable, text)
    assert main(["run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mla-fuzz: {variable}: {complaint}")


def test_without_a_command_the_commands_are_told(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2 and "COMMAND" in capsys.readouterr().err


def test_every_option_has_an_environment_twin_and_the_command_line_wins():
    parsed = SimpleNamespace(fuzz_seed=3, fuzz_without=[("padding", "strided"), ("repeatable",)])
    texts = {
        "KERNEL": "mine.py:run", "CONTRACT": "serving", "WITHOUT": "padding", "MAX_TIME": "10m", "MAX_CASES": "5",
        "SEED": "4", "PROFILE": "fast-math", "DEVICE": "cpu", "STRATA": "bell, ragged", "MAX_FAILURES": "2",
        "SHARD": "1/2", "OUT": "here", "SANDBOX": "always", "SANITIZE": "initcheck", "DATABASE": "redis://here:6379",
    }  # fmt: skip
    assert {"MLA_FUZZ_" + name for name in texts} == {option.variable for option in TABLE}
    values = given(parsed, {"MLA_FUZZ_" + name: text for name, text in texts.items()})
    assert Options(**values) == Options(
        kernel="mine.py:run",
        contract="serving",
        without=("padding", "strided", "repeatable"),
        profile="fast-math",
        shard=Shard(1, 2),
        max_time=600.0,
        max_cases=5,
        seed=3,
        device="cpu",
        strata=("bell", "ragged"),
        max_failures=2,
        sanitize="initcheck",
        sandbox="always",
        database="redis://here:6379",
        out=Path("here"),
    )


def test_our_kernel_is_held_to_everything_and_others_to_the_definition():
    assert Options().claim == Claim("hardened")
    assert Options(kernel="mine.py:run").claim == Claim("definition", (), "default")
    asked = Options(kernel="mine.py:run", contract="serving", without=("lse",), profile="fast-math")
    assert asked.claim == Claim("serving", ("lse",), "fast-math")


def test_the_profiles_offered_are_those_that_exist():
    [profile] = [option for option in TABLE if option.flag == "--profile"]
    assert all(profile.parse(name) == name for name in PROFILES)
    with pytest.raises(ValueError, match=", ".join(PROFILES)):
        profile.parse("sloppy")


def test_the_contracts_offered_are_those_that_exist():
    [contract] = [option for option in TABLE if option.flag == "--contract"]
    assert all(contract.parse(name) == name for name in CONTRACTS)
    with pytest.raises(ValueError, match=", ".join(CONTRACTS)):
        contract.parse("strict")


def test_gpus_are_counted_without_torch(monkeypatch):
    assert machine.visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert machine.visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == []
    listing = (
        "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb Device 0: (UUID: MIG-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n"
    )
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, listing, ""))
    assert machine.visible_gpus({}) == ["0", "1"]
    assert machine.visible_gpus({"CUDA_VISIBLE_DEVICES": "2, GPU-5a"}) == ["2", "GPU-5a"]
    monkeypatch.setattr(machine, "_gpus", lambda: 0)
    assert machine.visible_gpus({"CUDA_VISIBLE_DEVICES": "7"}) == []


def test_workers_take_the_gpus_in_turn_and_compute_on_one_core_each():
    seen = []
    for index in range(5):
        environ = {"MKL_NUM_THREADS": "4"}
        machine.prepare_worker("cuda", ["0", "3", "5"], index, environ)
        seen.append(environ.pop("CUDA_VISIBLE_DEVICES"))
        assert environ == {"MKL_NUM_THREADS": "4", "OMP_NUM_THREADS": "1"}
    assert seen == ["0,3", "3,5", "5,0", "0,3", "3,5"]
    environ = {}
    machine.prepare_worker("cuda", ["3"], 1, environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "3"
    environ = {}
    machine.prepare_worker("cpu", ["0"], 1, environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "" and environ["TRITON_INTERPRET"] == "1"


def test_auto_means_cores_or_a_few_workers_for_each_gpu(monkeypatch):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: range(16))
    assert machine.auto_workers("cpu", ["0"]) == 16
    assert machine.auto_workers("cuda", ["0"]) == min(16, machine.WORKERS_PER_GPU)
    assert machine.auto_workers("cuda", ["0", "1", "2", "3"]) == 16


def test_cuda_where_there_is_no_gpu_is_a_usage_error():
    assert machine.choose_device("auto", []) == machine.choose_device("cpu", ["0"]) == "cpu"
    assert machine.choose_device("auto", ["0"]) == machine.choose_device("cuda", ["0"]) == "cuda"
    with pytest.raises(UsageError, match="--device cuda: no NVIDIA GPU is visible"):
        machine.choose_device("cuda", [])


def test_our_kernel_runs_from_the_command_line(tmp_path):
    command = [sys.executable, "-m", "fuzz", "run", "--max-cases", "3", "-n", "1", "--seed", "1"]
    limits = ["--strata", "tiny", "--device", "cpu", "--out", str(tmp_path / "out")]
    ended = subprocess.run(
        [*command, *limits],
        cwd=ROOT,
        env=os.environ | {"PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "mla-fuzz: 0 failures in 3 cases" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--strata", "bel"], "--strata bel: no stratum 'bel'; there are "),
        (["--without", "paddin"], "--without paddin: no such promise; there are base, "),
        (["--kernel", "kernel:rum"], "--kernel kernel:rum: kernel has no 'rum'; did you mean 'run'?"),
    ],
)
def test_what_only_the_worker_can_know_is_said_once_too(tmp_path, arguments, complaint):
    command = [sys.executable, "-m", "fuzz", "run", "-n", "0", "--device", "cpu", "--out", str(tmp_path / "out")]
    ended = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stdout.count(complaint) == 1
