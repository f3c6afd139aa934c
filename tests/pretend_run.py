"""`python -m fuzz` with a suite whose kernels only pretend: no torch, so that a whole run takes a second or two.

The kernel is chosen by --kernel: `right:run`, `wrong:run` (two checks fail), `deadly:run` (a case with x divisible by 5
kills its process), `hanging:run`, `stillborn:run`, `broken:run` (the judge itself raises), `refused:run`.
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest

import fuzz.cluster.command
import fuzz.cluster.plan
import fuzz.run

KERNELS = ("right", "wrong", "deadly", "hanging", "stillborn", "broken", "refused")
TEST = """
import dataclasses, os, signal, time
import pytest
from hypothesis import strategies as st
from fuzz.options import UsageError
from fuzz.worker import Worker, refuse

@dataclasses.dataclass(frozen=True)
class Finding:
    check: str
    detail: str
    index: tuple | None = None
    ratio: float | None = None
    rows: str = "interior"
    def __str__(self):
        return f"{self.check}: {self.detail}"

@dataclasses.dataclass
class Verdict:
    ran: dict
    findings: list
    def to_json(self):
        findings = [dataclasses.asdict(finding) | {"message": str(finding)} for finding in self.findings]
        return {"ran": self.ran, "findings": findings}

cases = st.fixed_dictionaries({"x": st.integers(0, 1000), "y": st.integers(0, 1000), "kind": st.sampled_from("abc")})

class Property:
    strategy = cases
    reach = {f"values:{kind}": "" for kind in "abc"}

    def __init__(self, kernel, without):
        self.kernel, self.without = kernel, without

    def describe(self, case):
        kind = f"values:{case['kind']}"
        traits = [] if case["kind"] == "a" else [kind]
        return {"case": case, "strata": [kind], "traits": traits, "size": [case["x"] + case["y"]]}

    def judge(self, case, also):
        kernel, x, y = self.kernel, case["x"], case["y"]
        time.sleep(float(os.environ.get("PRETENDED_SECONDS", 0.001)))
        if kernel == "deadly" and x % 5 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if kernel == "hanging" and x > 200:
            time.sleep(1000)
        if kernel == "broken" and x > 100:
            raise RuntimeError("the judge is broken")
        findings = []
        if kernel == "wrong" and x > 100:
            findings.append(Finding("output", f"x is {x}", (0, 0, 0), float("inf")))
        if kernel == "wrong" and case["kind"] == "b" and y > 10:
            findings.append(Finding("lse", f"y is {y}", (0, 0), 2.0, "boundary"))
        return Verdict({"output": x / 2000, "lse": None, "alive": None}, findings)

    def keep(self, case, check, place):
        place.mkdir(parents=True, exist_ok=True)
        (place / "facts.json").write_text('{"reproduced": true, "findings": [], "wrong": {}}')
        (place / "inputs.safetensors").write_text("tensors")
        return self.judge(case, frozenset())

    def revive(self, case, check):
        if check == "lse" and "lse" in self.without:
            raise ValueError(check)
        return case

    def simplify(self, case, fails, seconds):
        pass

def test_kernel(fuzz_run, fuzz_worker, shard):
    kernel = fuzz_run.options.kernel.partition(":")[0]
    if kernel == "refused":
        refuse(fuzz_run, fuzz_worker, UsageError("--kernel refused:run: refused has no 'run'"))
    if kernel == "stillborn":
        os.kill(os.getpid(), signal.SIGKILL)
    worker = Worker(fuzz_run, fuzz_worker, Property(kernel, fuzz_run.options.claim.without))
    worker.tell("a pretended device", {"python": "3"})
    worker.work()
    if worker.failing:
        pytest.fail("\\n".join(one.finding["message"] for one in worker.failing.values()), pytrace=False)
"""


def main() -> None:
    if "PRETENDED_SUITE" not in os.environ:  # the first process makes the suite, workers inherit it
        suite = Path(tempfile.mkdtemp()) / "suite"
        suite.mkdir()
        (suite / "run.ini").write_text((fuzz.run.SUITE / "run.ini").read_text())
        (suite / "test_kernel.py").write_text(TEST)
        for name in KERNELS:
            (suite.parent / f"{name}.py").touch()
        os.environ["PRETENDED_SUITE"] = str(suite)
    fuzz.run.SUITE = Path(os.environ["PRETENDED_SUITE"])
    sys.path.append(str(fuzz.run.SUITE.parent))
    fuzz.cluster.command.PROGRAM = (str(Path(__file__).resolve()),)
    fuzz.cluster.plan.LEAST_UNITS = int(os.environ.get("PRETENDED_UNITS", 8))


main()

if __name__ == "__main__":
    import fuzz.watch

    fuzz.watch.GRACE = fuzz.watch.LAST_GRACE = float(os.environ.get("PRETENDED_GRACE", 8))
    fuzz.watch.HANG_SECONDS = float(os.environ.get("PRETENDED_PATIENCE", 300))
    if sys.argv[1] == "pytest":
        # workers load this module too, by name
        sys.exit(pytest.main(["-p", "tests.pretend_run", "-p", "fuzz.plugin", *sys.argv[2:]]))
    from fuzz.cli import main as command_line

    sys.exit(command_line(sys.argv[1:]))
