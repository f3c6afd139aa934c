"""`python -m fuzz doctor`: what this machine can run, what it can't, and why."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from fuzz import machine
from fuzz.options import UsageError
from fuzz.sanitizer import tool

_PACKAGES = ("torch", "triton", "numpy", "pytest", "pytest-xdist", "hypothesis", "safetensors", "rich", "jinja2")
# module -> what it is for, where it is not required
_OPTIONAL = {
    "flint": "certifying the golden reference (python-flint)",
    "playwright": "the report in a real browser",
    "flashinfer_bench": "FlashInfer-Bench's own data model",
    "coverage": "lines of kernel/ in the report",
    "ray": "runs on a cluster (the extra mla-fuzz[cluster])",
    "redis": "a corpus that machines share (the same extra)",
}
# A sanitizer of Triton's, as TRITON_INSTRUMENTATION_MODE names it -> the pass that compiles it in; docs/sanitizers.md.
_INSTRUMENTATION = {"consan": "add_concurrency_sanitizer", "fpsan": "add_fp_sanitizer"}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parser to what argparse's add_subparsers returned."""
    doctor = commands.add_parser(
        "doctor",
        help="what this machine can run, what it can't, and why",
        description="Say what this machine can run, what it can't, and why.",
        epilog="Exit status: 0 if the kernel ran here and was right, else 2.",
    )
    doctor.set_defaults(command=_doctor)


def _doctor(parsed: argparse.Namespace) -> int:
    gpus = machine.visible_gpus()
    device = machine.choose_device("auto", gpus)
    machine.prepare_worker(device, gpus, 0)
    for line in (*_software(), *_hardware(gpus, device)):
        print(line)
    works, line = _trial(device)
    print(line)
    if works:
        for line in _reach(device):
            print(line)
    return 0 if works else 2


def _software() -> Iterator[str]:
    yield f"python {platform.python_version()} on {platform.system()} {platform.machine()}"
    for name in _PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            yield f"{name}: NOT INSTALLED; make test installs it"
    for name, purpose in _OPTIONAL.items():
        if importlib.util.find_spec(name) is None:
            yield f"not here, optional: {name}, for {purpose}; its tests skip"


def _hardware(gpus: list[str], device: str) -> Iterator[str]:
    cores, workers = len(os.sched_getaffinity(0)), machine.auto_workers(device, gpus)
    yield f"{cores} cores, {len(gpus)} GPUs; -n auto means {workers} workers"
    if device == "cpu":
        yield "no GPU: kernels run in Triton's interpreter, which shows no races, compiler faults or grid limits"
        yield "not run without a GPU: side-stream, graph"
    if len(gpus) < 2:
        yield "not run with fewer than two GPUs: other-device"
    try:
        yield f"compute-sanitizer for --sanitize: {tool.find()}"
    except UsageError as error:
        yield f"not here: compute-sanitizer, for --sanitize: {error}"
    yield _instrumentation()
    yield _hopper_kernel(device)


def _hopper_kernel(device: str) -> str:
    """Whether our kernel for Hopper runs here, or why the portable one does."""
    if device == "cpu":
        return "our Gluon kernel for compute capability 9.0: no GPU, the portable kernel runs"
    import torch

    if not torch.cuda.is_available():
        return "our Gluon kernel for compute capability 9.0: torch sees no GPU; is it a build without CUDA?"

    from kernel.plan import why_not_listed

    reason = why_not_listed(torch.cuda.get_device_capability(torch.device(device)))
    return f"our Gluon kernel for compute capability 9.0: {'yes' if reason is None else 'no, ' + reason}"


def _instrumentation() -> str:
    """Which of its own sanitizers the installed Triton can compile into a kernel."""
    try:
        from triton._C.libtriton import passes

        built = dir(passes.ttgpuir)
    except (ImportError, AttributeError):
        return "sanitizers of Triton's own: not known of this version"
    told = (f"{name} {'yes' if done_by in built else 'no'}" for name, done_by in _INSTRUMENTATION.items())
    return f"sanitizers of Triton's own: {', '.join(told)}"


def _trial(device: str) -> tuple[bool, str]:
    """Run one case through the kernel and the judge."""
    try:
        from fuzz.case import Case
        from fuzz.checks import judge
        from fuzz.describe import device_name
        from fuzz.loading import load
        from kernel.contract import CONTRACTS
        from reference.constants import constants_for

        case = Case(lengths=((1, 3, 70),))
        verdict = judge(case, load(), device=device, contract=CONTRACTS["hardened"])
        if verdict.failed:
            return False, f"the kernel is WRONG here: {verdict.findings[0]}"
        import torch

        constants = constants_for(torch.device(device))
        origin = "measured" if constants.gpu else "not measured, documented or safe limits"
        return True, f"the kernel runs on {device_name(device)} and is right; machine constants: {origin}"
    except Exception as error:
        return False, f"the kernel does NOT run here: {type(error).__name__}: {error}"


def _reach(device: str) -> Iterator[str]:
    from fuzz.strata.strategy import CPU, GPU, excluded
    from kernel.contract import CONTRACTS

    for name, reason in excluded(CONTRACTS["hardened"], GPU if device == "cuda" else CPU).items():
        yield f"not run here: {name}: {reason}"
