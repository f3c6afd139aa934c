"""The tensors of a failure: what the kernel was given, what it gave, and what it should have given."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fuzz import formats
from fuzz.build import build
from fuzz.case import Case, is_finite
from fuzz.checks import Verdict
from fuzz.checks.numeric import beyond_rounding, expected_of
from fuzz.checks.rows import owns_rows
from fuzz.files import write_json, write_text
from fuzz.reproducer import FACTS, Reproducer, write_dump
from fuzz.rig import Tensors
from fuzz.tensorfile import LIMIT, write_tensors
from fuzz.words import spans
from fuzz.workload import takes, to_line, workload
from kernel.contract import VALUE_DTYPES
from reference.bounds import interval, lse_interval
from reference.profile import DEFAULT_PROFILE, Profile

_SPANS = 12  # of wrong rows, heads or columns that are told at most
_FLOATS = {"output": VALUE_DTYPES, "lse": (torch.float32,)}


def write_evidence(
    place: Path,
    case: Case,
    check: str,
    verdict: Verdict,
    observed: Tensors,
    *,
    device: torch.device | str,
    profile: Profile = DEFAULT_PROFILE,
) -> None:
    """Make the directory `place` with the tensors and the workload of a failing case, each as far as it is no larger
    than a file of a dump may be, and with what a second look at it showed.

    verdict   of the case when it was run again
    observed  what the kernel gave then
    profile   the numerics by which its results are judged
    """
    with _made(place) as part:
        wrong: dict[str, Any] = {}
        if formats.nbytes(formats.inputs_of(case)) <= LIMIT:
            _write_inputs(part, case)
        if "output" in observed:
            write_tensors(part / "observed.safetensors", observed)
        if formats.nbytes(formats.expected_of(case)) <= LIMIT:
            expected = _expected(case, observed, device, profile)
            if expected:
                write_tensors(part / "expected.safetensors", expected)
            wrong = _wrong(check, expected, observed) if is_finite(case) else {}
        reproduced = check in (finding.check for finding in verdict.findings)
        write_json(part / FACTS, {"reproduced": reproduced, "findings": verdict.to_json()["findings"], "wrong": wrong})


def write_whole_dump(
    place: Path,
    record: Reproducer,
    case: Case,
    verdict: Verdict,
    observed: Tensors,
    *,
    device: torch.device | str,
    profile: Profile,
) -> None:
    """Make the directory `place` a dump with all the evidence that there can be; see `write_evidence`."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".evidence-", dir=place.parent) as scratch:
        evidence = Path(scratch) / "evidence"
        write_evidence(evidence, case, record.check, verdict, observed, device=device, profile=profile)
        write_dump(place, record, evidence)


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
    return {"count": len(places)} | {axis: spans(places[:, i].unique().tolist(), _SPANS) for i, axis in enumerate(axes)}
