"""A FlashInfer-Bench trace set of what we have: the definition, our kernel as a solution, failures as workloads.

`flashinfer-bench run --local DIR` runs such a directory. Its parts are those of flashinfer_bench/data/trace_set.py:
definitions/, solutions/, workloads/ and blob/, https://github.com/flashinfer-ai/flashinfer-bench.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fuzz.files import write_json, write_text
from fuzz.names import HOME
from fuzz.options import UsageError
from fuzz.reading import find, read
from fuzz.workload import to_line

DEFINITION_FILE = Path(__file__).with_name("definition.json")
SOLUTION_NAME = "mla_fuzz_triton"
_ENTRY = '''\
"""Our kernel in destination-passing style."""

from . import kernel


def run(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale, output, lse):
    operands = (q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale)
    kernel.run(*operands, output=output, lse=lse)
'''


def definition() -> dict[str, Any]:
    """The definition of the operator, as FlashInfer-Bench has it, with a reference of our own."""
    value: dict[str, Any] = json.loads(DEFINITION_FILE.read_text())
    return value


def solution() -> dict[str, Any]:
    """Our kernel: the package as it stands, and an entry point."""
    sources = [{"path": "main.py", "content": _ENTRY}]
    for path in sorted((HOME / "kernel").glob("*.py")):
        sources.append({"path": f"kernel/{path.name}", "content": path.read_text()})
    return {
        "name": SOLUTION_NAME,
        "definition": definition()["name"],
        "author": "mla-fuzz",
        "description": f"The kernel of mla-fuzz {_version()}.",
        "spec": {
            "language": "triton",
            "target_hardware": ["cuda"],
            "entry_point": "main.py::run",
            "dependencies": ["torch", "triton"],
            "destination_passing_style": True,
        },
        "sources": sources,
    }


def export(place: Path, failures: Iterable[Path]) -> int:
    """Write the trace set; `failures` are dumps or directories of runs. Returns the number of workloads.

    Raises:
        UsageError: a dump that cannot be read, or a directory that holds something else.
    """
    if place.exists() and not (place.is_dir() and (not any(place.iterdir()) or (place / "definitions").is_dir())):
        raise UsageError(f"{place}: it is there already, and no trace set")
    name, op_type = definition()["name"], definition()["op_type"]
    dumps = [read(record) for path in failures for record in find(path)]
    for kind, value in (("definitions", definition()), ("solutions", solution())):
        file = f"{name}.json" if kind == "definitions" else f"{SOLUTION_NAME}.json"
        (place / kind / op_type).mkdir(parents=True, exist_ok=True)
        write_json(place / kind / op_type / file, value)
    lines = []
    for dump in dumps:
        if dump.directory is None or not (dump.directory / "workload.jsonl").is_file():
            continue  # float16, int64 indices or tensors that are too large: no workload of the definition
        value = json.loads((dump.directory / "workload.jsonl").read_text())
        uuid = value["workload"]["uuid"]
        blob = Path("blob", "workloads", op_type, name, f"{uuid}.safetensors")
        (place / blob).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(dump.directory / "inputs.safetensors", place / blob)
        for given in value["workload"]["inputs"].values():
            if given["type"] == "safetensors":
                given["path"] = str(blob)
        lines.append(to_line(value))
    lines = list(dict.fromkeys(lines))  # one case may fail several checks
    if lines:
        (place / "workloads" / op_type).mkdir(parents=True, exist_ok=True)
        write_text(place / "workloads" / op_type / f"{name}.jsonl", "".join(lines))
    return len(lines)


def _version() -> str:
    try:
        return version("mla-fuzz")
    except PackageNotFoundError:
        return "from a checkout"
