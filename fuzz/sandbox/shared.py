"""Tensors that two processes have in common: their storages are copied into one piece of shared memory, guard bands and
all, and what the other process did to them is copied back.

The memory is a file without a name, so that nothing is left of it when both processes are gone, however they ended.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzz import guards
from fuzz.checks.storage import whole

_ALIGNED = 64  # bytes: what torch's own allocator gives


class Memory:
    """A piece of shared memory that grows. `file` is the descriptor by which another process maps it too."""

    def __init__(self, file: int | None = None) -> None:
        self.file = os.memfd_create("mla-fuzz") if file is None else file
        self._pages: mmap.mmap | None = None

    def storage(self, start: int, size: int) -> torch.Tensor:
        """`size` bytes from `start` on as a uint8 tensor with a storage of its own; both sides see what is written."""
        if self._pages is None or start + size > len(self._pages):
            needed = 1 << max(20, (start + size - 1).bit_length())
            if os.fstat(self.file).st_size < needed:
                os.ftruncate(self.file, needed)
            self._pages = mmap.mmap(self.file, needed)
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(self._pages, dtype=torch.uint8, count=size, offset=start)

    def close(self) -> None:
        """Give it up; it is gone when the other side has done so too, and no tensor is left."""
        self._pages = None
        with contextlib.suppress(OSError):
            os.close(self.file)


@dataclass(frozen=True, slots=True)
class Lent:
    """Views that were copied into shared memory.

    message  from which `borrow` makes them on the other side
    files    of storages that are shared memory already, to be sent along
    end      bytes of the shared memory that are in use
    """

    message: dict[str, Any]
    files: list[int]
    end: int
    _copied: list[tuple[torch.Tensor, torch.Tensor]]

    def take_back(self) -> None:
        """Give the storages of the views the bytes that their copies hold now."""
        for here, there in self._copied:
            here.copy_(there)


def lend(memory: Memory, views: Sequence[torch.Tensor]) -> Lent:
    """Copy the storages of CPU tensors into shared memory; views of one storage share its copy."""
    numbers: dict[int, int] = {}
    storages: list[dict[str, int]] = []
    described: list[dict[str, Any]] = []
    placed: list[tuple[torch.Tensor, int]] = []
    files: list[int] = []
    end = 0
    for view in views:
        here = whole(view)
        if here.data_ptr() not in numbers:
            numbers[here.data_ptr()] = len(storages)
            file = guards.file_of(view)
            if file is not None:
                storages.append({"file": len(files), "size": here.numel()})
                files.append(file)
            else:
                storages.append({"start": end, "size": here.numel()})
                placed.append((here, end))
                end += -(-here.numel() // _ALIGNED) * _ALIGNED
        described.append({"storage": numbers[here.data_ptr()], "offset": view.storage_offset(), **_form(view)})
    memory.storage(0, end)  # mapped as a whole, once
    copied = [(here, memory.storage(start, here.numel())) for here, start in placed]
    for here, there in copied:
        there.copy_(here)
    return Lent({"storages": storages, "views": described}, files, end, copied)


def borrow(memory: Memory, message: dict[str, Any], files: Sequence[int]) -> list[torch.Tensor]:
    """The views that another process lent."""
    storages = []
    for told in message["storages"]:
        if "file" in told:
            pages = mmap.mmap(files[told["file"]], told["size"])
            storages.append(torch.frombuffer(pages, dtype=torch.uint8).untyped_storage())
        else:
            storages.append(memory.storage(told["start"], told["size"]).untyped_storage())
    views = []
    for told in message["views"]:
        view = torch.empty(0, dtype=getattr(torch, told["dtype"]))
        views.append(view.set_(storages[told["storage"]], told["offset"], told["shape"], told["stride"]))
    return views


def give(memory: Memory, tensor: torch.Tensor, start: int, most: int) -> tuple[dict[str, Any], int]:
    """Copy a tensor behind what is in use; returns what `take` makes a copy of it from, and the new end.

    Of a tensor with more than `most` bytes only the form is given.
    """
    size = tensor.numel() * tensor.itemsize
    told: dict[str, Any] = {**_form(tensor), "start": None}
    if size > most:
        return told, start
    start = -(-start // _ALIGNED) * _ALIGNED
    memory.storage(start, size).view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
    return told | {"start": start}, start + size


def take(memory: Memory, told: dict[str, Any]) -> torch.Tensor:
    """A copy of a tensor that another process gave; one that was too large holds zeros, in no memory."""
    dtype = getattr(torch, told["dtype"])
    if told["start"] is None:
        return torch.zeros((), dtype=dtype).expand(told["shape"])
    size = dtype.itemsize
    for extent in told["shape"]:
        size *= extent
    return memory.storage(told["start"], size).view(dtype).view(told["shape"]).clone()


def _form(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
    }
