"""The tensors of a failure: what the kernel was given, what it gave, and what it should have given."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, cast

import torch

from fuzz import formats
from fuzz.build import build
from fuzz.case import Case, is_finite
from fuzz.checks import Verdict, judge, needs_device
from fuzz.checks.elsewhere import home_of
from fuzz.checks.invariance import INVARIANCES
from fuzz.checks.numeric import beyond_rounding, expected_of
from fuzz.checks.rows import owns_rows
from fuzz.journal import write_json, write_text
from fuzz.reproducer import FACTS
from fuzz.sandbox import Sandbox
from fuzz.target import Target
from fuzz.tensorfile import LIMIT, write_tensors
from fuzz.worker import finding_json
from fuzz.workload import takes, to_line, workload
from kernel.contract import VALUE_DTYPES, Inputs
from reference.bounds import interval, lse_interval
from reference.profile import DEFAULT_PROFILE, Profile

Tensors = dict[str, torch.Tensor]
_FLOATS = {"output": VALUE_DTYPES, "lse": (torch.float32,)}


class Recording:
    """A target that keeps what its first call gave, on the CPU."""

    def __init__(self, target: Target | Sandbox) -> None:
        self._target = target
        self.destination_passing, self.profile = target.destination_passing, target.profile
        self.results: Tensors = {}

    def __call__(
        self, inputs: Inputs, output: torch.Tensor | None = None, lse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        results = self._target(inputs, output, lse)
        if not self.results:
            named = dict(zip(("output", "lse"), results, strict=True))
            self.results = {name: tensor.detach().cpu().clone() for name, tensor in named.items() if _is_plain(tensor)}
        return results


@dataclass(frozen=True, slots=True)
class Rig:
    """A test rig: a kernel under test, the promises that it is held to, and where it runs. The checks `also` are made
    besides those that a case draws."""

    target: Target | Sandbox
    device: str
    contract: frozenset[str]

    def verdict(self, case: Case, also: Set[str] = frozenset()) -> Verdict:
        """The verdict on a case."""
        if isinstance(self.target, Sandbox) and self._is_judged_inside(case, also):
            return self.target.judge(case, self.contract, also)[0]
        return self._judged(case, self.target, also)

    def recorded(self, case: Case, also: Set[str] = frozenset()) -> tuple[Verdict, Tensors]:
        """The verdict on a case, and what the kernel gave."""
        if isinstance(self.target, Sandbox) and self._is_judged_inside(case, also):
            return self.target.judge(case, self.contract, also, record=True)
        recording = Recording(self.target)
        return self._judged(case, recording, also), recording.results

    def judge(self, case: Case, check: str) -> tuple[Verdict, Tensors]:
        """The verdict on a case, with `check` among the checks, and what the kernel gave."""
        return self.recorded(case, {check} & INVARIANCES.keys())

    def _judged(self, case: Case, target: object, also: Set[str]) -> Verdict:
        # the operands of a sandbox are on the CPU, wherever its kernel runs
        device = "cpu" if isinstance(self.target, Sandbox) else self.device
        return judge(case, cast(Target, target), device=device, contract=self.contract, also=also)

    def _is_judged_inside(self, case: Case, also: Set[str]) -> bool:
        device = torch.device(self.device)
        return device.type == "cuda" and (home_of(case, device) == device or needs_device(case, self.contract, also))


def write_evidence(
    place: Path,
    case: Case,
    check: str,
    verdict: Verdict | None,
    observed: Tensors,
    *,
    device: torch.device | str,
    profile: Profile = DEFAULT_PROFILE,
) -> None:
    """Make the directory `place` with the tensors and the workload of a failing case, each as far as it is no larger
    than a file of a dump may be, and with what a second look at it showed.

    verdict   of the case when it was run again, None if it was not
    observed  what the kernel gave then
    profile   the numerics by which its results are judged
    """
    with _made(place) as part:
        facts: dict[str, Any] = {"reproduced": None, "findings": [], "wrong": {}}
        if formats.nbytes(formats.inputs_of(case)) <= LIMIT:
            _write_inputs(part, case)
        if "output" in observed:
            write_tensors(part / "observed.safetensors", observed)
        if formats.nbytes(formats.expected_of(case)) <= LIMIT:
            expected = _expected(case, observed, device, profile)
            if expected:
                write_tensors(part / "expected.safetensors", expected)
            facts["wrong"] = _wrong(check, expected, observed) if is_finite(case) else {}
        if verdict is not None:
            facts["reproduced"] = check in (finding.check for finding in verdict.findings)
            facts["findings"] = [finding_json(finding) for finding in verdict.findings]
        write_json(part / FACTS, facts)


@contextmanager
def _made(place: Path) -> Iterator[Path]:
    """An empty directory that becomes `place` when it is complete; what was there goes."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".", suffix=".part", dir=place.parent))
    try:
        yield part
        shutil.rmtree(place, ignore_errors=True)
        part.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def input_tensors(case: Case) -> Tensors:
    """The operands of a case under their names, contiguous, on the CPU; sm_scale is a float64 without dimensions."""
    operands = build(case, "cpu").operands()
    return {
        name: value.contiguous() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)
        for name, value in operands.items()
    }


def _write_inputs(part: Path, case: Case) -> None:
    write_tensors(part / "inputs.safetensors", input_tensors(case))
    inputs = build(case, "cpu")
    if takes(inputs):
        write_text(part / "workload.jsonl", to_line(workload(inputs, "inputs.safetensors", str(case))))


def _expected(case: Case, observed: Tensors, device: torch.device | str, profile: Profile) -> Tensors:
    """The tensors of expected.safetensors; none where the row pointers are broken, so that no result is defined."""
    inputs = build(case, device)
    if not owns_rows(inputs):
        return {}
    golden = expected_of(case, inputs, profile)
    low, high = interval(golden, inputs.q_nope.dtype)
    lse_low, lse_high = lse_interval(golden)
    tensors = {
        "output": golden.output,
        "output_error": golden.output_error,
        "output_low": low,
        "output_high": high,
        "lse": golden.lse,
        "lse_error": golden.lse_error,
        "lse_low": lse_low,
        "lse_high": lse_high,
    }
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
    for name in ("output", "lse"):
        given, golden_one = observed.get(name), tensors[name]
        ratio = torch.full(golden_one.shape, torch.nan, dtype=torch.float32)
        if given is not None and given.shape == golden_one.shape and given.dtype in _FLOATS[name]:
            wrong_by = beyond_rounding(given, golden_one) if name == "output" else (given.double() - golden_one).abs()
            ratio = (wrong_by / tensors[f"{name}_error"]).float()
        tensors[f"{name}_ratio"] = ratio
    return tensors


def _wrong(check: str, expected: Tensors, observed: Tensors) -> dict[str, Any]:
    """Which elements of the result that `check` is about lie outside their interval: their count, rows, heads and
    columns. Nothing where that cannot be said."""
    given = observed.get(check)
    if given is None or check not in expected or given.shape != expected[check].shape:
        return {}
    given, golden = given.double(), expected[check]
    inside = (given >= expected[f"{check}_low"].double()) & (given <= expected[f"{check}_high"].double())
    same = (given == golden) | (given.isnan() & golden.isnan())
    places = (~inside & ~same).nonzero()
    if not len(places):
        return {}
    axes = ("rows", "heads", "columns")[: places.shape[1]]
    return {"count": len(places)} | {axis: spans(places[:, i].unique().tolist()) for i, axis in enumerate(axes)}


def spans(numbers: list[int], most: int = 12) -> str:
    """Sorted numbers as '0-3, 7, 9-10', no more than `most` such parts."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in parts[:most]]
    return ", ".join(shown + ["..."] * (len(parts) > most))


def _is_plain(tensor: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Whether a result can be kept."""
    return (
        tensor is not None
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and tensor.dtype in formats.RESULTS
        and tensor.numel() * tensor.itemsize <= LIMIT
    )
