"""The sandbox: whatever a kernel does to its process is a failure of one case, and the run goes on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fuzz.case import Case
from fuzz.cli import main
from fuzz.options import UsageError
from fuzz.rig import Rig
from fuzz.sandbox import Sandbox, open_kernel, patience
from fuzz.target import Function
from kernel.contract import CONTRACTS
from tests.test_plugin import environment

ROOT = Path(__file__).parent.parent
KERNELS = str(Path(__file__).parent / "misbehaving.py")
HARMLESS, HARMFUL = Case(((1, 3, 9),)), Case(((1, 3, 70),))


@pytest.fixture
def sandboxed():
    """A function that gives a kernel of tests/misbehaving.py in a sandbox, as a rig."""
    made = []

    def make(name: str, contract: str = "serving") -> Rig:
        made.append(Sandbox(f"{KERNELS}:{name}", "default", "cpu"))
        return Rig(made[-1], "cpu", CONTRACTS[contract])

    yield make
    for each in made:
        each.close()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setitem(patience._USUAL, "cpu", 1.0)
    monkeypatch.setattr(patience, "_PER_TILE", 0.0)
    monkeypatch.setattr(patience, "_SHORTEST", 0.5)


WAYS = {
    "segfault": ("SIGSEGV", "its process died of SIGSEGV", "about to read address 0"),
    "abort": ("SIGABRT", "its process died of SIGABRT", "assertion failed: tile >= 0"),
    "killed": ("SIGKILL", "its process died of SIGKILL, as the system does when memory runs out", ""),
    "hang": ("timeout", "it did not return within", "in hang"),
    "hungry": ("memory", "can't allocate memory", ""),
    "sys_exit": ("exit-3", "SystemExit: 3", ""),
    "os_exit": ("exit-4", "its process ended with exit status 4", ""),
    "leaves_a_thread": ("thread", "the thread poller still runs after the call has returned", ""),
    "raises": ("ValueError", "ValueError: tile 65 of 64", ""),
    "gives_numbers": ("TypeError", "returned a float as output, not a tensor", ""),
    "gives_an_operand": ("TypeError", "returned output in the memory of the operand q_nope", ""),
    "closes_all_files": ("closed", "its process closed its connection", ""),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_kernel_that_does_not_return_fails_that_case_alone(sandboxed, impatient, name):
    cause, detail, printed = WAYS[name]
    rig = sandboxed(name)
    assert not rig.verdict(HARMLESS).findings
    [finding] = rig.verdict(HARMFUL).findings
    assert (finding.check, finding.cause) == ("alive", cause)
    assert detail in finding.detail and printed in finding.printed
    assert not rig.verdict(HARMLESS).findings


def test_a_crash_says_where_in_the_kernel_and_nothing_of_the_sandbox(sandboxed):
    [finding] = sandboxed("segfault").verdict(HARMFUL).findings
    assert 'misbehaving.py", line' in finding.printed
    assert "fuzz/" not in finding.printed and "Extension modules" not in finding.printed


@pytest.mark.parametrize("name", ["right", "writes_into", "complains"])
def test_a_right_kernel_passes_and_its_process_stays(sandboxed, name):
    rig = sandboxed(name)
    first = rig.target._child.pid
    for case in (HARMLESS, HARMFUL, Case(((1, 3, 0), (2, 0, 5), (1, 1, 1)), layout="fused", pages="permuted")):
        verdict = rig.verdict(case, {"repeatable", "batch-invariant", "page-invariant", "fresh", "dead-content"})
        assert not verdict.findings and {"output", "lse", "repeatable", "fresh"} <= verdict.ran.keys()
    assert rig.target._child.pid == first


def test_a_kernel_that_prints_fails_the_case_with_what_it_printed_and_is_checked_all_the_same(sandboxed):
    rig = sandboxed("prints")
    child = rig.target._child.pid
    assert not rig.verdict(HARMLESS).findings
    verdict = rig.verdict(HARMFUL, {"repeatable"})
    [finding] = verdict.findings
    assert (finding.check, finding.cause) == ("alive", "stdout")
    assert finding.printed.splitlines() == ["from Python", "and the restfrom C"]
    assert {"output", "lse", "repeatable"} <= verdict.ran.keys()
    assert not rig.verdict(HARMLESS).findings
    assert rig.target._child.pid == child


def test_a_verdict_from_inside_tells_of_what_was_printed_too(sandboxed):
    rig = sandboxed("prints")
    verdict, _ = rig.target.judge(HARMFUL, rig.contract, frozenset())
    assert not verdict.findings and rig.target.take_printed().endswith("from C")


def test_a_kernel_runs_on_the_device_that_is_chosen_when_its_sandbox_is_made(sandboxed, monkeypatch):
    """Children had the variables of the first sandbox of the process, whatever device that was for."""
    for chosen in ("-1", "-2"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        [finding] = sandboxed("tells_its_device").verdict(HARMFUL).findings
        assert finding.printed == chosen


def test_what_is_printed_is_no_message(sandboxed):
    [finding] = sandboxed("noisy").verdict(HARMLESS).findings
    assert (finding.check, finding.cause) == ("alive", "stdout")


def test_what_a_kernel_does_to_memory_is_seen_from_outside(sandboxed):
    assert "kv_indices was changed" in _failing(sandboxed("changes_an_operand"))["inputs-untouched"]
    assert "memory around output was written" in _failing(sandboxed("writes_before_its_output"))["in-bounds"]
    assert "8192 of 24576 elements of output were not written" in _failing(sandboxed("leaves_a_row"))["written"]


def test_results_too_large_to_be_any_are_told_by_their_form(sandboxed):
    assert "has shape (1099511627776, 512)" in _failing(sandboxed("gives_far_too_much"), HARMFUL)["output"]


def test_storage_that_is_too_large_to_be_copied_is_shared(sandboxed):
    sparse = Case(((1, 3, 70),), pages="across-2^22", seed=1)
    verdict = sandboxed("right", "hardened").verdict(sparse)
    assert not verdict.findings and verdict.ran["output"] is not None


def test_a_verdict_from_inside_is_the_same(sandboxed):
    for name, case in (("right", HARMLESS), ("leaves_a_row", HARMLESS), ("raises", HARMFUL)):
        rig = sandboxed(name)
        within, observed = rig.target.judge(case, rig.contract, {"repeatable"}, record=True)
        outside, recorded = rig.recorded(case, {"repeatable"})
        assert within == outside
        assert observed.keys() == recorded.keys()
        assert all((observed[name].view(-1) == recorded[name].view(-1)).all() for name in recorded if name == "lse")


@pytest.mark.parametrize(("name", "cause"), [("segfault", "SIGSEGV"), ("sys_exit", "exit-3")])
def test_a_verdict_from_inside_that_does_not_come_is_a_failure_too(sandboxed, name, cause):
    rig = sandboxed(name)
    [finding] = rig.target.judge(HARMFUL, rig.contract, frozenset())[0].findings
    assert (finding.check, finding.cause) == ("alive", cause)
    assert not rig.target.judge(HARMLESS, rig.contract, frozenset())[0].findings


def test_after_a_hang_others_get_less_time(sandboxed, impatient):
    rig = sandboxed("hang")
    [first] = rig.verdict(HARMFUL).findings
    [second] = rig.verdict(HARMFUL).findings
    assert "within 1 s" in first.detail and "within 0 s" in second.detail


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("import os\nos._exit(5)", "its process ended with exit status 5 while it was loaded"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "its process died of SIGSEGV while it was loaded"),
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("def run(q): pass", "the function takes no q_nope"),
    ],
)
def test_a_kernel_that_cannot_be_loaded_is_refused_in_one_line(tmp_path, content, message):
    (tmp_path / "broken.py").write_text(content)
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        Sandbox(f"{tmp_path}/broken.py:run", "default", "cpu")
    assert "\n" not in str(error.value)


def test_our_kernel_is_in_this_process_and_others_are_not_unless_asked():
    assert isinstance(open_kernel("kernel:run", "default", "cpu"), Function)
    assert isinstance(open_kernel(f"{KERNELS}:right", "default", "cpu", "never"), Function)
    for spec, when in ((f"{KERNELS}:right", "auto"), ("kernel:run", "always")):
        opened = open_kernel(spec, "default", "cpu", when)
        assert isinstance(opened, Sandbox)
        opened.close()


def test_a_closed_sandbox_leaves_no_process_and_the_next_one_starts_where_this_process_is(tmp_path, monkeypatch):
    first = Sandbox(f"{KERNELS}:right", "default", "cpu")
    pid = first._child.pid
    first.close()
    assert not Path(f"/proc/{pid}").exists()
    (tmp_path / "elsewhere.py").write_text("from tests.misbehaving import right\n")
    monkeypatch.chdir(tmp_path)
    for spec in ("elsewhere.py:right", "elsewhere:right"):
        again = Sandbox(spec, "default", "cpu")
        assert again._nursery is first._nursery
        again.close()


KILLED = """
import sys
from fuzz.build import build
from fuzz.case import Case
from fuzz.sandbox import Sandbox
sandbox = Sandbox(sys.argv[1], "default", "cpu")
print(sandbox._child.pid, sandbox._nursery.pid, flush=True)
sandbox(build(Case(((1, 3, 70),))))
"""


def test_a_killed_worker_leaves_no_process_and_no_shared_memory(tmp_path):
    shared = set(os.listdir("/dev/shm"))
    worker = subprocess.Popen(
        [sys.executable, "-c", KILLED, f"{KERNELS}:hang"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = worker.stdout.readline().split()
    assert all(Path(f"/proc/{pid}").exists() for pid in pids) and len(pids) == 2
    time.sleep(0.5)  # the call hangs
    worker.kill()
    worker.communicate()
    until = time.monotonic() + 5
    while any(_runs(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pids)
    assert set(os.listdir("/dev/shm")) <= shared


def test_a_run_in_which_every_tenth_case_kills_its_process_counts_all_cases(tmp_path, capsys):
    ended = _fuzz(tmp_path, "kills_every_tenth", "--max-cases", "300", "--seed", "4", "-n", "1")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    said = json.loads((tmp_path / "out" / "summary.json").read_text())
    [failure] = said["failures"]
    assert (failure["check"], failure["bucket"]) == ("alive", "alive-SIGKILL+lengths-key-tiles")
    assert said["cases"] == 300 and said["checks"]["alive"]["cases"] == 300
    assert 15 <= failure["cases"] == said["checks"]["alive"]["failed"] <= 60
    assert "replacing crashed worker" not in ended.stdout
    place = tmp_path / "out" / failure["path"]
    assert json.loads((place / "case.json").read_text())["case"]["lengths"] == [[1, 1, 121]]
    assert main(["replay", str(place), "--kernel", f"{KERNELS}:kills_every_tenth"]) == 1
    assert capsys.readouterr().out.startswith("FAILED alive-SIGKILL")


def test_two_ways_to_die_are_two_buckets(tmp_path):
    (tmp_path / "two.py").write_text(
        "from tests.misbehaving import os, right\n"
        "def run(**operands):\n"
        "    if operands['qo_indptr'].shape[0] > 2: os._exit(6)\n"
        "    if operands['kv_indices'].shape[0] > 5: os.abort()\n"
        "    return right(**operands)\n"
    )
    ended = _fuzz(tmp_path, tmp_path / "two.py:run", "--max-cases", "40", "--seed", "2", "-n", "0")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    said = json.loads((tmp_path / "out" / "summary.json").read_text())
    buckets = {failure["bucket"].partition("+")[0] for failure in said["failures"]}
    assert buckets == {"alive-SIGABRT", "alive-exit-6"}


def test_ctrl_c_during_a_hang_ends_the_run_in_seconds(tmp_path):
    process = subprocess.Popen(
        _command(tmp_path, "hang", "--seed", "3", "-n", "1"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 60
    journal = tmp_path / "out" / "journal" / "gw0.jsonl"
    while not journal.exists() or time.time() - journal.stat().st_mtime < 2 or not _is_in_a_case(journal):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    began = time.monotonic()
    output = process.communicate(timeout=30)[0]
    assert time.monotonic() - began < 10
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["stopped"] == "interrupted", output


def test_variants_are_told_by_the_child():
    sandbox = Sandbox(f"{ROOT}/tests/wrong_kernels.py:two_paths", "default", "cpu")
    found = Rig(sandbox, "cpu", CONTRACTS["serving"]).verdict(Case(((1, 3, 70), (1, 1, 9)))).findings
    sandbox.close()
    assert [(finding.check, finding.variant) for finding in found] == [("output", "tiled")]


def _failing(rig: Rig, case: Case = HARMLESS) -> dict[str, str]:
    return {finding.check: str(finding) for finding in rig.verdict(case).findings}


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _is_in_a_case(journal: Path) -> bool:
    return '"event":"case"' in journal.read_text().splitlines()[-1]


def _command(directory: Path, kernel: str | Path, *arguments: str) -> list[str]:
    spec = kernel if isinstance(kernel, Path) else f"{KERNELS}:{kernel}"
    options = ["--kernel", str(spec), "--device", "cpu", "--out", str(directory / "out"), *arguments]
    return [sys.executable, "-m", "fuzz", "run", *options]


def _fuzz(directory: Path, *arguments: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        _command(directory, *arguments),
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=170,
    )
