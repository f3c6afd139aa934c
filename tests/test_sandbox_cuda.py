"""What a kernel does to a GPU is a failure of one case too, and the run goes on. On a machine with a GPU alone."""

import json
import time
from pathlib import Path

import pytest
import torch

from fuzz.case import Case
from fuzz.rig import Rig
from fuzz.sandbox import Sandbox
from kernel.contract import CONTRACTS
from tests.test_sandbox import _fuzz

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

KERNELS = str(Path(__file__).parent / "misbehaving_cuda.py")
# Both of our kernel's ways to compute are in the first, so that the second has nothing to compile.
HARMLESS, HARMFUL = Case(((1, 3, 9), (1, 3, 70))), Case(((1, 3, 70),))
INSIDE = frozenset({"side-stream"})  # a check that the child makes, and with it all others

WAYS = {
    "illegal_access": ("cuda-error", "illegal memory access"),
    "hungry": ("memory", "out of memory"),
    "hang": ("timeout", "it did not return within 10 s"),
}


class Impatient:
    """What a call may take once the kernel is compiled."""

    def call(self, inputs):
        return 10.0

    def verdict(self):
        return 10.0

    def took(self, seconds):
        pass

    def hung(self):
        pass


@pytest.fixture
def sandboxed():
    """A function that gives a kernel of tests/misbehaving_cuda.py in a sandbox, as a rig."""
    made = []

    def make(name: str) -> Rig:
        made.append(Sandbox(f"{KERNELS}:{name}", "default", "cuda"))
        return Rig(made[-1], "cuda", CONTRACTS["serving"])

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("also", [frozenset(), INSIDE], ids=["judged outside", "judged inside"])
@pytest.mark.parametrize("name", WAYS)
def test_a_kernel_that_breaks_the_gpu_costs_one_case_and_one_child(sandboxed, name, also):
    cause, detail = WAYS[name]
    rig = sandboxed(name)
    assert not rig.verdict(HARMLESS, also).findings
    child, patience = rig.target._child.pid, rig.target.patience
    rig.target.patience = Impatient()
    began = time.monotonic()
    [finding] = rig.verdict(HARMFUL, also).findings
    assert (finding.check, finding.cause) == ("alive", cause), finding
    assert detail in finding.detail
    assert time.monotonic() - began < 30
    rig.target.patience = patience
    verdict = rig.verdict(HARMLESS, also)
    assert not verdict.findings and {"output", "lse"} <= verdict.ran.keys()
    assert rig.target._child.pid != child


def test_a_right_kernel_keeps_its_child_and_its_context(sandboxed):
    rig = sandboxed("right")
    child = rig.target._child.pid
    for case in (HARMLESS, HARMFUL, Case(((1, 3, 0), (2, 0, 5), (1, 1, 1)), layout="fused", pages="permuted")):
        for also in (frozenset(), INSIDE, frozenset({"graph", "fresh"})):
            verdict = rig.verdict(case, also)
            assert not verdict.findings and also <= verdict.ran.keys()
    assert rig.target._child.pid == child


def test_a_run_goes_on_after_illegal_accesses(tmp_path):
    spec = Path(f"{KERNELS}:illegal_access")
    ended = _fuzz(
        tmp_path, spec, "--device", "cuda", "--max-time", "60s", "--max-cases", "64", "--seed", "4", "-n", "4"
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    said = json.loads((tmp_path / "out" / "summary.json").read_text())
    # There may be a second bucket: shrinking takes a child for each try, and the time may be up before.
    buckets = [failure["bucket"] for failure in said["failures"]]
    assert buckets and all(bucket.startswith("alive-cuda-error") for bucket in buckets), buckets
    assert {failure["check"] for failure in said["failures"]} == {"alive"}
    assert said["cases"] > said["checks"]["alive"]["failed"] >= 3
    assert said["checks"]["output"]["cases"] > 10
    assert said["errors"] == [] and "replacing crashed worker" not in ended.stdout
