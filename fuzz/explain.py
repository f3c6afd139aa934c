"""A failure in words: the README.md of its dump."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fuzz.journal import strict
from fuzz.words import requests

if TYPE_CHECKING:
    from fuzz.reproducer import Reproducer

DEMANDS = {
    "alive": "the call returns: no exception, no crash, no hang",
    "written": "every element of output and lse is overwritten",
    "in-bounds": "memory outside the operands and results stays as it was",
    "inputs-untouched": "the operands are bit for bit the same after the call",
    "output": "every element of output is as close to the golden reference as a correct kernel must come",
    "lse": "every element of lse, in base 2, is as close to the golden reference as a correct kernel must come",
    "empty-rows": "a row that sees no key has output +0 and lse -inf",
    "repeatable": "the same call gives the same bits again",
    "page-invariant": "the results do not depend on which pages hold the keys",
    "batch-invariant": "the result of a request does not depend on what else is in the batch",
    "dead-content": "the results do not depend on what pages hold that no request names",
    "causality": "a row does not depend on keys behind its own position",
    "fresh": "new values in the same buffers give new results",
    "side-stream": "the kernel runs on the current stream",
    "graph": "a CUDA graph of the call, replayed with new values, gives their results",
    "other-device": "the kernel runs on the device of its operands, whichever is current",
    "memcheck": "compute-sanitizer sees no access outside the tensors, and none that is misaligned",
    "racecheck": "compute-sanitizer sees no two threads in a race for shared memory",
    "initcheck": "compute-sanitizer sees no read of global memory that nobody has written",
    "synccheck": "compute-sanitizer sees no wrong use of a barrier",
}

FILES = {
    "inputs.safetensors": "the operands under the definition's names, contiguous",
    "observed.safetensors": "output and lse as the kernel gave them",
    "expected.safetensors": "the golden output and lse in float64; *_error is how far a result may be from them before"
    " it is rounded, *_low and *_high the interval that it has to lie in, *_ratio the error before rounding over"
    " *_error",
    "workload.jsonl": "the same operands as a FlashInfer-Bench workload, with paths relative to this directory",
}

_RUNS_SHOWN = 20
_FAMILIES = ("pages", "values", "layout", "scale", "poison", "dtype", "index_dtype", "indptr")


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
    tails = [f"{name.replace('_', ' ')} {case[name]}" for name in ("padded_rows", "spare_indices", "spare_pages")
             if case.get(name)]  # fmt: skip
    names = ", ".join(f"{family.replace('_', ' ')} {case[family]}" for family in _FAMILIES if family in case)
    lines.append(f"- {', '.join([names, *tails])}; seed {case.get('seed')}")
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
