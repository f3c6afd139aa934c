"""A fault in the reference or the judge against our own tests, in a copy of the repository."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fuzz
from fuzz.journal import Journal
from fuzz.mutants.edit import Sources
from fuzz.mutants.mutant import BROKEN, KILLED, SURVIVED

ROOT = Path(fuzz.__file__).parents[1]
PACKAGES = ("kernel", "reference", "fuzz", "tests")
FILES = ("conftest.py", "pyproject.toml")
# Each test file may take so long on a CPU; and many times that by the clock, on a busy machine.
_SECONDS, _BUSY = 300, 10


def repository_sources() -> Sources:
    """The modules of the reference and the fuzzer, by path in the repository."""
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for package in ("reference", "fuzz")
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def patience(tests: tuple[str, ...]) -> float:
    """Seconds after which test files must have ended."""
    return (_BUSY + 1) * _SECONDS * len(tests)


def run_tests(changed: Sources, tests: tuple[str, ...], journal: Journal) -> None:
    """Run test files, up to the first failure, on a copy with `changed` modules."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        copied = Path(directory)
        for package in PACKAGES:
            shutil.copytree(ROOT / package, copied / package, ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            shutil.copy(ROOT / name, copied / name)
        for path, text in changed.items():
            (copied / path).write_text(text)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *tests]
        limit = _SECONDS * len(tests)
        try:
            done = subprocess.run(
                command, cwd=copied, env=os.environ | {"PYTHONPATH": directory}, text=True, capture_output=True,
                timeout=_BUSY * limit, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1)),
            )  # fmt: skip
            slow = done.returncode == -signal.SIGXCPU
        except subprocess.TimeoutExpired:
            slow = True
        if slow:
            message = f"the tests took more than {limit} s"
            journal.write(KILLED, seconds=float(limit), checks=["alive"], traits=[], message=message)
            return
    seconds = time.monotonic() - start
    failed = re.findall(r"^FAILED tests/(\S+?)\.py::([^\[\s]+)", done.stdout, re.MULTILINE)
    if done.returncode == 0:
        journal.write(SURVIVED, seconds=seconds)
    elif done.returncode == 1 and failed:
        module, test = failed[0]
        journal.write(KILLED, seconds=seconds, checks=[module], traits=[], message=test.replace("_", " "))
    else:
        journal.write(BROKEN, message=done.stdout[-2000:] + done.stderr[-2000:])
