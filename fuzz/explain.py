"""A failure in words: the README.md of its dump."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fuzz.demands import DEMANDS
from fuzz.files import strict
from fuzz.words import requests

if TYPE_CHECKING:
    from fuzz.reproducer import Reproducer

FILES = {
    "inputs.safetensors": "the operands under the definition's names, contiguous",
    "observed.safetensors": "output and lse as the kernel gave them",
    "expected.safetensors": "the golden output and lse in float64; *_error is how far a result may be from them before"
    " it is rounded, *_low and *_high the interval that it has to lie in, *_ratio the error before rounding over"
    " *_error",
    "workload.jsonl": "the same operands as a FlashInfer-Bench workload, with paths relative to this directory",
}

_RUNS_SHOWN = 20


def explain(record: Reproducer, replay: str, files: Sequence[str]) -> str:
    """The text of README.md, Markdown. `files` are the names of those that the dump holds besides it and case.json."""
    finding = record.finding
    parts = [
        f"# {record.bucket}",
        f"`{record.kernel}` fails the check **{record.check}** on {record.device}.",
        f"The check passes when {DEMANDS[record.check]}." if record.check in DEMANDS else "",
        f"    {finding.get('message') or finding['detail']}",
        _printed(finding),
        _again(record.reproduced),
        "## Where",
        _element(finding),
        _wrong(record.wrong),
        _others(record.others),
        "## The case",
        _case(record.case, record.strata),
        "## Run it again",
        f"    {replay}",
        "The directory may be moved; give its new path then. The command answers FIXED (exit status 0), FAILED or FLAKY"
        " (1), or ERROR (2).",
        f"Recorded under the contract `{record.contract}`{_without(record.without)}, with"
        f" {', '.join(f'{name} {version}' for name, version in record.versions.items())}.",
        "## Files",
        "\n".join(
            ["- `case.json`: all of this for programs; the case in it alone rebuilds the operands"]
            + [f"- `{name}`: {FILES[name]}" for name in files]
        ),
        _missing(files),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _printed(finding: Mapping[str, Any]) -> str:
    lines = [f"    {line}" for line in finding.get("printed", "").splitlines()]
    return "\n".join(["The last that its process printed:", "", *lines]) if lines else ""


def _again(reproduced: bool | None) -> str:
    if reproduced is None:
        return ""
    if reproduced:
        return "It failed again when this was written."
    return "**It did not fail again when this was written**: the kernel does not do the same every time."


def _element(finding: Mapping[str, Any]) -> str:
    if finding.get("index") is None:
        return f"No single element: {finding['detail']}."
    names = ("row", "head", "column")
    place = ", ".join(f"{name} {i}" for name, i in zip(names, finding["index"], strict=False))
    lines = [f"- worst element: {place}, in a row of the kind {finding.get('rows', 'interior')}"]
    if finding.get("variant"):
        lines.append(f"- computed by the variant `{finding['variant']}` of the kernel")
    for name in ("got", "expected", "allowed", "ratio"):
        value = strict(finding.get(name))
        if value is not None:
            text = f"{value[0]} to {value[1]}" if name == "allowed" else str(value)
            lines.append(
                f"- {name}: {text}" if name != "ratio" else f"- distance: {float(value):.3g} times the allowed"
            )
    return "\n".join(lines)


def _wrong(wrong: Mapping[str, Any]) -> str:
    if not wrong:
        return ""
    axes = "; ".join(f"{axis} {wrong[axis]}" for axis in ("rows", "heads", "columns") if axis in wrong)
    return f"Elements outside their intervals: {wrong['count']:,}, in {axes}."


def _others(others: Sequence[Mapping[str, Any]]) -> str:
    if not others:
        return ""
    lines = [f"- {other.get('message') or other['detail']}" for other in others]
    return "\n".join(["The same case fails other checks too:", "", *lines])


def _case(case: Mapping[str, Any], strata: Sequence[str]) -> str:
    if "lengths" not in case:
        return f"    {strict(dict(case))}"
    lines = [f"- {one}" for one in requests(case["lengths"], _RUNS_SHOWN)]
    told = {name.replace("_", " "): value for name, value in case.items() if value and name not in ("lengths", "seed")}
    lines.append(f"- {', '.join(f'{name} {value}' for name, value in told.items())}; seed {case.get('seed')}")
    return "\n".join([*lines, "", f"Strata: {', '.join(strata)}."])


def _without(promises: Sequence[str]) -> str:
    return f" without {', '.join(promises)}" if promises else ""


def _missing(files: Sequence[str]) -> str:
    missing = [name for name in FILES if name not in files]
    if not missing:
        return ""
    return (
        f"Not here: {', '.join(missing)}. A file is left out where it would be too large, where the kernel left no"
        " results or the case defines none, where the definition has no such operands (float16, int64 indices), or"
        " where the run had no time left; `python -m fuzz minimize` on this directory writes what can be had."
    )
