"""Tensors with guard bands: each is a view inside a larger storage whose other bytes hold a known pattern.

The pattern is a NaN in bfloat16, float16 and float32 and an absurd number as an index, so that a read outside the view
shows in the result; a write outside it changes the pattern.
"""

import math
import mmap
import os
import weakref
from collections.abc import Sequence

import torch

BAND = 1 << 16  # bytes on each side; a tile of 4 output rows is as large
PATTERN = 0x7FE5  # of every 16-bit word
LAZY = 1 << 28  # bytes from which storage is zero pages of virtual memory with bands, instead of pattern everywhere


def allocate(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    *,
    strides: Sequence[int] | None = None,
    offset: int = 0,
    front: int = 0,
) -> torch.Tensor:
    """A tensor whose storage holds `BAND` bytes of pattern before it and after it, and pattern in its own gaps.

    `strides` (elements, not negative) default to contiguous; `offset` moves the tensor that many elements away from
    its alignment; `front` puts as many elements more between the first band and the tensor. Its elements hold the
    pattern too. From 256 MiB on, only the bands do: the rest is zero, and on the CPU takes no memory until touched.
    """
    strides = _contiguous(shape) if strides is None else tuple(strides)
    band = BAND // dtype.itemsize
    elements = 2 * band + extent(shape, strides, offset, front)
    words = _words(elements * dtype.itemsize, torch.device(device))
    return words.view(dtype).as_strided(shape, strides, band + front + offset)


def extent(shape: Sequence[int], strides: Sequence[int] | None, offset: int = 0, front: int = 0) -> int:
    """Elements between the bands of such a tensor."""
    strides = _contiguous(shape) if strides is None else strides
    span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if math.prod(shape) else 0
    return front + offset + span


def intact(*views: torch.Tensor) -> torch.Tensor:
    """Whether everything outside `views` still holds the pattern, bool []; they are all the views of one storage."""
    storage = views[0].untyped_storage()
    words = torch.empty(0, dtype=torch.int16, device=views[0].device).set_(storage)
    inside = slice(BAND // 2, -BAND // 2) if storage.nbytes() >= LAZY else _without_gaps(*views)
    if inside is not None:
        words = torch.cat((words[: inside.start], words[inside.stop :]))
        return (words ^ PATTERN).count_nonzero() == 0
    changes = words ^ PATTERN
    for view in views:
        width = view.itemsize // 2
        strides = [stride * width for stride in view.stride()]
        changes.as_strided((*view.shape, width), (*strides, 1), view.storage_offset() * width).zero_()
    return changes.count_nonzero() == 0


def _without_gaps(view: torch.Tensor, *others: torch.Tensor) -> slice | None:
    """The 16-bit words of a view, if it is the only one and every word between its first and last is its own."""
    width = view.itemsize // 2
    first, size = view.storage_offset() * width, view.numel() * width
    dense = not others and 0 not in view.stride() and extent(view.shape, view.stride()) == view.numel()
    return slice(first, first + size) if dense else None


def _words(nbytes: int, device: torch.device) -> torch.Tensor:
    """Guarded memory as 16-bit words."""
    nbytes += -nbytes % 8
    if nbytes < LAZY:
        return torch.full((nbytes // 2,), PATTERN, dtype=torch.int16, device=device)
    words = _lazy_zeros(nbytes) if device.type == "cpu" else torch.zeros(nbytes // 2, dtype=torch.int16, device=device)
    words[: BAND // 2] = PATTERN
    words[-BAND // 2 :] = PATTERN
    return words


def file_of(tensor: torch.Tensor) -> int | None:
    """The descriptor of the file that a tensor's storage is, by which another process can map it; None if it is none.

    Only storage from 256 MiB on is one: it can be shared, but is too large to be copied.
    """
    return _FILES.get(tensor.untyped_storage().data_ptr())


_FILES: dict[int, int] = {}  # address of a storage -> descriptor


def _lazy_zeros(nbytes: int) -> torch.Tensor:
    """Zero pages that the system provides when they are touched, whatever their number: a file without a name."""
    file = os.memfd_create("mla-fuzz")
    os.ftruncate(file, nbytes)
    pages = mmap.mmap(file, nbytes)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    words = torch.frombuffer(pages, dtype=torch.int16)
    _FILES[words.data_ptr()] = file
    weakref.finalize(pages, _forget, words.data_ptr(), file)
    return words


def _forget(address: int, file: int) -> None:
    del _FILES[address]
    os.close(file)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
