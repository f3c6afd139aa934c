"""FlashInfer-Bench workloads as operands. `fuzz.workload` writes them, and says what they are."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from fuzz import guards
from fuzz.checks.storage import tensors
from fuzz.exchange import definition
from fuzz.hashing import bell, key
from fuzz.options import UsageError
from fuzz.reading import free_memory
from kernel.contract import Inputs, check_inputs

_LINE_LIMIT = 1 << 20
# Operands and results stand in memory up to three times, with what a check holds besides.
_COPIES = 4


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of a file: where it is, its UUID, the sizes of the variable axes, and the place of each operand."""

    path: Path
    line: int
    uuid: str
    axes: Mapping[str, int]
    inputs: Mapping[str, Mapping[str, Any]]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def read_workloads(path: Path) -> Iterator[Workload | UsageError]:
    """The workloads of a file; in the place of a line that is none, why.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        file = path.open(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    with file:
        for number in range(1, 1 << 62):
            try:
                text = file.readline(_LINE_LIMIT)
            except UnicodeDecodeError as error:
                raise UsageError(f"{path}: it is no text: {error.reason}") from error
            if not text:
                return
            if not text.strip():
                continue
            try:
                yield _parsed(path, number, text)
            except (ValueError, RecursionError) as error:
                yield UsageError(f"{path}:{number}: {error}")


def operands_of(workload: Workload, seed: int, device: str) -> Inputs:
    """The operands, each in guarded memory. Random ones are bell-shaped and follow from `seed` and the UUID.

    Raises:
        UsageError: a tensor that is not there or has another form, or that this machine cannot hold.
    """
    tensors = {}
    specs = definition()
    sizes = {name: axis.get("value", workload.axes.get(name)) for name, axis in specs["axes"].items()}
    wanted = {
        name: (tuple(sizes[axis] for axis in spec["shape"]), getattr(torch, spec["dtype"]))
        for name, spec in specs["inputs"].items()
        if spec["shape"] is not None
    }
    needed = _COPIES * sum(math.prod(shape) * dtype.itemsize for shape, dtype in wanted.values())
    if needed > (free := free_memory(device)):
        raise UsageError(f"{workload}: it takes {needed / 2**30:.1f} GiB, this machine has {free / 2**30:.1f} GiB free")
    for name, (shape, dtype) in wanted.items():
        tensors[name] = guards.allocate(shape, dtype, device)
        given = workload.inputs[name]
        if given["type"] == "safetensors":
            tensors[name].copy_(_stored(workload, name, given, shape, dtype))
        else:
            rows = torch.arange(math.prod(shape[:-1]), device=device)
            content = bell(key(seed, f"{workload.uuid} {name}"), rows, shape[-1], 0, dtype)
            tensors[name].copy_(content.view(shape))
    return Inputs(**tensors, sm_scale=float(workload.inputs["sm_scale"]["value"]))


def promises_needed(inputs: Inputs) -> dict[str, str]:
    """The promises that a kernel must make for its result to be judged, each with what it is needed for."""
    needed = {"base": "any workload"}
    try:
        check_inputs(**tensors(inputs), sm_scale=inputs.sm_scale)
    except ValueError as error:
        return needed | {"hardened": str(error)}
    q_len, kv_len = inputs.qo_indptr.long().diff(), inputs.kv_indptr.long().diff()
    if ((kv_len > 0) & (kv_len < q_len)).any():
        needed["masked-rows"] = "a request has more queries than keys"
    if inputs.qo_indptr[-1] < inputs.total_q or inputs.kv_indptr[-1] < inputs.num_kv_indices:
        needed["padding"] = "there are more rows or more kv_indices than the requests own"
    lost = ~(inputs.ckv_cache.isfinite().all(-1) & inputs.kpe_cache.isfinite().all(-1))[:, 0]
    named = torch.zeros_like(lost)
    named[inputs.kv_indices[: int(inputs.kv_indptr[-1])].long()] = True
    if (lost & ~named).any():
        needed["nan-contained"] = "pages that no request names hold NaN or Inf"
    if (lost & named).any():
        needed["causal-contained"] = "keys hold NaN or Inf"
    return needed


def _parsed(path: Path, number: int, text: str) -> Workload:
    """Raises ValueError."""
    value = json.loads(text)
    specs = definition()
    if not isinstance(value, dict) or not isinstance(value.get("workload"), dict):
        raise ValueError("it is no trace: an object with definition and workload")
    if value.get("definition") != specs["name"]:
        raise ValueError(f"it is a workload of {str(value.get('definition'))[:80]!r}, not of {specs['name']}")
    workload = value["workload"]
    for name, kind in (("uuid", str), ("axes", dict), ("inputs", dict)):
        if not isinstance(workload.get(name), kind):
            raise ValueError(f"its workload has no {name}")
    axes = workload["axes"]
    for name, axis in specs["axes"].items():
        if axis["type"] == "var" and not (type(axes.get(name)) is int and 0 <= axes[name] < 1 << 40):
            raise ValueError(f"axis {name} is {str(axes.get(name))[:40]}, must be a number of elements")
    inputs = workload["inputs"]
    for name, spec in specs["inputs"].items():
        if not isinstance(inputs.get(name), dict):
            raise ValueError(f"input {name} is missing")
        _check_input(name, spec, inputs[name])
    return Workload(path, number, workload["uuid"], axes, inputs)


def _check_input(name: str, spec: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    kind = given.get("type")
    if spec["shape"] is None:
        value = given.get("value")
        if kind != "scalar" or not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ValueError(f"input {name} must be a scalar with a value")
    elif kind == "random":
        if spec["dtype"] != "bfloat16":
            raise ValueError(f"input {name} is random: an index must have a value")
    elif kind != "safetensors":
        raise ValueError(f"input {name} is of the type {str(kind)[:40]!r}, must be safetensors or random")
    else:
        place, tensor = given.get("path"), given.get("tensor_key")
        if not isinstance(place, str) or not place or not isinstance(tensor, str):
            raise ValueError(f"input {name} has no path or no tensor_key")
        if place.startswith("/") or ".." in PurePosixPath(place).parts or re.search(r"[\\\0]", place):
            raise ValueError(f"input {name}: the path {place!r} leads out of the trace set")


def _stored(
    workload: Workload, name: str, given: Mapping[str, Any], shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor of a safetensors file beside the workloads, or at the same path from a directory above them: the root of
    the trace set."""
    start = workload.path.resolve().parent
    found = [file for root in (start, *start.parents) if (file := root / given["path"]).is_file()]
    if not found:
        raise UsageError(f"{workload}: {name}: there is no {given['path']} beside the file or above it")
    try:
        with safe_open(found[0], framework="pt") as file:
            part = file.get_slice(given["tensor_key"])
            if tuple(part.get_shape()) != shape:
                raise UsageError(f"{workload}: {name} has shape {part.get_shape()}, its axes say {list(shape)}")
            tensor: torch.Tensor = file.get_tensor(given["tensor_key"])
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{workload}: {name}: {found[0].name}: {error}") from error
    if tensor.dtype != dtype:
        raise UsageError(f"{workload}: {name} is {tensor.dtype}, must be {dtype}")
    return tensor
