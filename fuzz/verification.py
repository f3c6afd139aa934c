"""`fuzz.verify`: the fuzzer as one call in anyone's test."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from fuzz.buckets import bucket_name, kind_of, telling
from fuzz.case import Case
from fuzz.checks import Verdict
from fuzz.describe import describe, device_name, traits_of, versions
from fuzz.evidence import write_whole_dump
from fuzz.files import strict
from fuzz.loading import load, of_function
from fuzz.options import DEFAULT_OUT, UsageError
from fuzz.reproducer import Reproducer, replay_command
from fuzz.rig import Rig
from fuzz.shrink import Search
from fuzz.strata.strategy import CPU, GPU, Budget
from fuzz.target import Target
from fuzz.terms import drawn, promises
from fuzz.units import CASES, explore, seed_of
from reference.profile import PROFILES

SEARCH_SECONDS = 60.0
# Of a GPU's free memory, what the operands of one case may take: they are copied, and other processes want some.
_MEMORY_SHARE = 8


def verify(
    kernel: Callable[..., Any] | str,
    contract: str = "definition",
    *,
    without: Sequence[str] = (),
    profile: str = "default",
    strata: Sequence[str] = (),
    max_cases: int = 100,
    seed: int = 0,
    device: str = "auto",
    out: Path | str = DEFAULT_OUT / "verify",
) -> dict[str, float | None]:
    """Check that a kernel keeps its promises, on `max_cases` generated cases: for a test of the kernel's own project.

    kernel    a function that is called by name with the eight operands, or what --kernel takes
    contract  definition, serving or hardened; `without` leaves promises out (`kernel.contract`)
    profile   the numerics that the kernel documents (`reference.profile`)
    strata    the only strata to draw, by name; default all that the contract admits
    seed      the same seed gives the same cases
    device    auto, cpu or cuda
    out       where the dump of a failure is written; nothing is where there is none

    The kernel runs in this process: one that may crash or hang is better tested by `python -m fuzz run`.

    Returns each check that ran with its worst observed/bound ratio, None where it has none.

    Raises:
        AssertionError: with the findings on the first case that failed, shrunk, and the command that replays it.
        UsageError: the kernel cannot be called, or there is no such contract, promise, stratum or device.
    """
    __tracebackhide__ = True
    rig = Rig(_target(kernel, profile), _device(device), promises(contract, without))
    strategy = drawn(rig.contract, strata, _budget(rig.device))
    trial = _Trial(rig)
    try:
        for unit in range(-(-max_cases // CASES)):
            explore(strategy, seed_of(seed, unit), min(CASES, max_cases - unit * CASES), trial.run, shrink=False)
    except _Found as found:
        failure = _smallest(found.case, found.verdict, rig)
        place = _dump(failure, rig, contract, tuple(without), profile, Path(out))
        text = _message(failure, rig.target.spec, contract, trial.count, place)
    else:
        return trial.worst
    raise AssertionError(text)


class _Found(BaseException):
    """Ends the exploration. Not an Exception: Hypothesis would shrink it."""

    def __init__(self, case: Case, verdict: Verdict) -> None:
        self.case, self.verdict = case, verdict


class _Trial:
    """Runs cases and keeps count."""

    def __init__(self, rig: Rig) -> None:
        self.count = 0
        self.worst: dict[str, float | None] = {}
        self._rig = rig

    def run(self, case: Case) -> None:
        rig = self._rig
        verdict = rig.verdict(case)
        self.count += 1
        if verdict.failed:
            raise _Found(case, verdict)
        for check, ratio in verdict.ran.items():
            seen = self.worst.get(check)
            self.worst[check] = ratio if seen is None else seen if ratio is None else max(seen, ratio)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failing case, shrunk; the findings that count, the first one being the one that was shrunk for."""

    case: Case
    findings: list[dict[str, Any]]
    verdict: Verdict
    observed: dict[str, torch.Tensor]

    @property
    def check(self) -> str:
        return str(self.findings[0]["check"])


def _smallest(case: Case, verdict: Verdict, rig: Rig) -> _Failure:
    """The smallest case that fails alike, as far as it is found in time."""
    found = telling(verdict.to_json()["findings"])[0]
    check, kind = found["check"], kind_of(found)

    def fails(smaller: Case) -> bool:
        return any(kind_of(finding.to_json()) == kind for finding in rig.judge(smaller, check)[0].findings)

    smallest = Search(case, rig.contract, fails, SEARCH_SECONDS).smallest()
    again, observed = rig.judge(smallest, check)
    shown = again if any(finding.check == check for finding in again.findings) else verdict
    best = smallest if shown is again else case
    findings = shown.to_json()["findings"]
    findings.sort(key=lambda finding: finding["check"] != check)
    return _Failure(best, findings, shown, observed)


def _dump(failure: _Failure, rig: Rig, contract: str, without: tuple[str, ...], profile: str, out: Path) -> Path:
    """Write the failure as `python -m fuzz run` would; returns the directory."""
    finding = strict(failure.findings[0])
    bucket = bucket_name(failure.check, traits_of(failure.case), finding, shrunk=True)
    record = Reproducer(
        bucket=bucket,
        check=failure.check,
        kernel=rig.target.spec,
        contract=contract,
        without=without,
        profile=profile,
        case=failure.case.to_json(),
        strata=tuple(describe(failure.case)["strata"]),
        finding=finding,
        device=device_name(rig.device),
        versions=versions(),
    )
    place = out / re.sub(r"[^A-Za-z0-9_.-]+", "-", rig.target.spec).strip("-.") / "failures" / bucket
    case, verdict, observed = failure.case, failure.verdict, failure.observed
    write_whole_dump(place, record, case, verdict, observed, device=rig.device, profile=rig.target.profile)
    return place


def _message(failure: _Failure, spec: str, contract: str, count: int, place: Path) -> str:
    lines = [f"{spec} does not keep the contract {contract!r}: case {count} fails.", ""]
    lines += [f"  {finding['message']}" for finding in failure.findings]
    lines += ["", f"smallest case: {spelled(failure.case)}", f"tensors and words: {place}"]
    if _is_importable(spec):
        lines.append(f"replay: {replay_command(place, spec)}")
    else:
        lines.append("replay: call verify again, the same arguments give the same cases")
    return "\n".join(lines)


def spelled(case: Case) -> str:
    """A case as Python, without the fields that are at their defaults."""
    plain = Case(lengths=())
    given = [
        f"{field.name}={getattr(case, field.name)!r}"
        for field in fields(case)
        if getattr(case, field.name) != getattr(plain, field.name)
    ]
    return f"Case({', '.join(given)})"


def _target(kernel: Callable[..., Any] | str, profile: str) -> Target:
    if profile not in PROFILES:
        raise UsageError(f"profile {profile!r} is none of {', '.join(PROFILES)}")
    if isinstance(kernel, str):
        return load(kernel, profile)
    return of_function(kernel, _spec_of(kernel), profile)


def _spec_of(function: Callable[..., Any]) -> str:
    """What --kernel takes for a function; its bare name where it has no such spec, as one that stands in a function."""
    name = getattr(function, "__qualname__", None) or repr(function)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if "<" in name or module is None:
        return name.rpartition(".")[2]
    if module.__name__ != "__main__" and "." not in name and getattr(module, name, None) is function:
        return f"{module.__name__}:{name}"
    try:
        path = Path(inspect.getsourcefile(module) or "")
    except TypeError:
        return name
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{name}"


def _is_importable(spec: str) -> bool:
    return ":" in spec or spec.endswith(".json")


def _device(device: str) -> str:
    available = torch.cuda.is_available()
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device {device!r} is none of auto, cpu, cuda")
    if device == "cuda" and not available:
        raise UsageError("device 'cuda': torch sees no GPU")
    return "cuda" if available and device != "cpu" else "cpu"


def _budget(device: str) -> Budget:
    if device == "cpu":
        return CPU
    free, _total = torch.cuda.mem_get_info()
    return replace(GPU, memory=min(GPU.memory, free // _MEMORY_SHARE))
