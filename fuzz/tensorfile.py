"""Safetensors files that may come from anywhere: what one claims is checked before memory is taken for it.

Safetensors files hold no code: https://github.com/huggingface/safetensors describes the format, an 8-byte length, a
JSON header with dtype, shape and place of each tensor, and the bytes.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load, save

from fuzz.options import UsageError

LIMIT = 64 << 20  # bytes of the tensors in one file
_HEADER_LIMIT = 1 << 16
_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I32": torch.int32,
    "I64": torch.int64,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a tensor has to be: one of some dtypes, a shape; `shape` None admits any. It may be `optional`."""

    dtypes: Collection[torch.dtype]
    shape: tuple[int, ...] | None = None
    optional: bool = False


def nbytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors.values())


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Write the tensors, contiguous; does nothing and returns False where they exceed `LIMIT`."""
    if nbytes(tensors) > LIMIT:
        return False
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)
    return True


def read_tensors(path: Path, wanted: Mapping[str, Wanted]) -> dict[str, torch.Tensor]:
    """The tensors of a file, on the CPU.

    Raises:
        UsageError: in one line, why the file is not one with the tensors `wanted` and no others.
    """
    content = read_regular(path, LIMIT + _HEADER_LIMIT + 8)
    _check(path, content, wanted)
    return load(content)


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a file that is one: no link, no pipe, and no larger than `limit` bytes. Raises UsageError."""
    try:
        # O_NONBLOCK: a pipe would be waited for
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        reason = "it is a symbolic link" if path.is_symlink() else error.strerror
        raise UsageError(f"{path}: {reason}") from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path}: it is not a regular file")
        if status.st_size > limit:
            raise UsageError(f"{path}: {status.st_size:,} bytes are more than the {limit:,} that such a file can have")
        return file.read(limit)


def _check(path: Path, content: bytes, wanted: Mapping[str, Wanted]) -> None:
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > _HEADER_LIMIT or 8 + length > len(content):
        raise UsageError(f"{path}: it is truncated, or no safetensors file")
    try:
        header = json.loads(content[8 : 8 + length])
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: its header is not JSON") from None
    if not isinstance(header, dict):
        raise UsageError(f"{path}: its header is not an object")
    header.pop("__metadata__", None)
    for name in sorted(name for name in wanted.keys() - header.keys() if not wanted[name].optional):
        raise UsageError(f"{path}: it has no tensor {name}")
    place = 0
    for name, entry in sorted(header.items(), key=lambda item: _extent(item[1])):
        if name not in wanted:
            raise UsageError(f"{path}: it has a tensor {name[:60]!r}, which does not belong there")
        place = _check_entry(f"{path}: {name}", entry, wanted[name], place)
    if 8 + length + place != len(content):
        raise UsageError(f"{path}: it is truncated: {len(content):,} bytes, its header tells of {8 + length + place:,}")


def _extent(entry: object) -> tuple[int, int]:
    """Where a tensor begins and ends; entries of another form come first, and are refused."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if isinstance(offsets, list) and len(offsets) == 2 and all(type(offset) is int for offset in offsets):
        return offsets[0], offsets[1]
    return -1, -1


def _check_entry(what: str, entry: object, wanted: Wanted, place: int) -> int:
    """Check a tensor that has to begin at the byte `place`; returns where it ends."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise UsageError(f"{what} is described in another way than safetensors does")
    dtype, shape = _DTYPES.get(str(entry["dtype"])), entry["shape"]
    if dtype is None or dtype not in wanted.dtypes:
        must = " or ".join(str(one).removeprefix("torch.") for one in wanted.dtypes)
        raise UsageError(f"{what} is {str(entry['dtype'])[:20]}, must be {must}")
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 1 << 48 for size in shape):
        raise UsageError(f"{what} has no valid shape")
    if len(shape) > 8 or (wanted.shape is not None and tuple(shape) != wanted.shape):
        must = f", must be {list(wanted.shape)}" if wanted.shape is not None else ""
        raise UsageError(f"{what} has shape {str(shape)[:80]}{must}")
    end = place + math.prod(shape) * dtype.itemsize
    if entry["data_offsets"] != [place, end]:
        raise UsageError(f"{what} lies elsewhere in the file than safetensors puts it")
    return end
