"""Each tool of compute-sanitizer finds what is planted for it, in a kernel whose results are right. On a machine with a
GPU that the tool can look at."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fuzz.case import Case
from fuzz.options import UsageError
from fuzz.sanitizer import process, tool
from fuzz.sanitizer.outside import Sanitized
from kernel.contract import CONTRACTS
from tests.test_plugin import environment

ROOT = Path(__file__).parent.parent
KERNELS = str(Path(__file__).parent / "misbehaving_cuda.py")
HARMLESS, HARMFUL = Case(((1, 3, 9), (1, 3, 70))), Case(((1, 3, 70),))
PLANTED = {
    "memcheck": ("reads_past_the_end", "global-read"),
    "racecheck": ("races", "race"),
    "initcheck": ("reads_what_nobody_wrote", "uninitialized-global"),
    "synccheck": ("waits_with_half_a_warp", "barrier"),
}


def why_not() -> str:
    if not torch.cuda.is_available():
        return "needs an NVIDIA GPU"
    try:
        tool.find()
    except UsageError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


def sanitized(name: str, kernel: str) -> Sanitized:
    return Sanitized.of(name, f"{KERNELS}:{kernel}", "default", CONTRACTS["serving"], "cuda")


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_and_a_right_kernel_is_not_accused(name, monkeypatch):
    monkeypatch.setattr(process, "_PATIENCE", 60.0)
    kernel, kind = PLANTED[name]
    for which in ("right", kernel):
        verdict = sanitized(name, which).verdict(HARMLESS)
        assert not verdict.findings and {name, "output", "lse"} <= verdict.ran.keys()
    assert not sanitized(name, "right").verdict(HARMFUL).findings
    [finding] = sanitized(name, kernel).verdict(HARMFUL).findings
    assert (finding.check, finding.cause) == (name, kind), finding
    assert "misbehaving_cuda.py" in finding.printed


def test_an_error_is_traced_to_its_case_and_the_rest_is_done_in_another_process():
    cases = [HARMLESS, HARMFUL, Case(((1, 2, 5),))]
    rig = sanitized("memcheck", "reads_past_the_end")
    verdicts = rig.batch(cases, time.monotonic() + 300)
    assert [[finding.cause for finding in verdict.findings] for verdict in verdicts[:2]] == [[], ["global-read"]]
    assert len(verdicts) == 3 or not rig.batch(cases[2:], time.monotonic() + 300)[0].findings


def test_a_run_finds_it_dumps_it_and_replays_it(tmp_path):
    kernel = f"{KERNELS}:reads_past_the_end"

    def fuzz(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "fuzz", *arguments, "--kernel", kernel, "--device", "cuda"]
        return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)

    ended = fuzz("run", "--sanitize", "memcheck", "--max-time", "75s", "--seed", "4", "-n", "1", "--out", "out")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    said = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [found["check"] for found in said["failures"]] == ["memcheck"], said["failures"]
    [failure] = said["failures"]
    assert failure["bucket"].startswith("memcheck-global-read"), failure
    assert said["checks"]["memcheck"]["cases"] >= said["checks"]["memcheck"]["failed"] >= 1 and not said["errors"]
    again = fuzz("replay", str(tmp_path / "out" / failure["path"]))
    assert again.returncode == 1 and again.stdout.startswith("FAILED memcheck-global-read"), again.stdout + again.stderr
