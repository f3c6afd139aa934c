"""A picture of the error of one failure: how far each element was from the golden reference, over how far it may be."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

# A picture has at most this many cells each way; a cell shows the worst of its elements.
_CELLS = 128
_HEIGHT, _WIDTH = 192, 384  # in pixels, about
_TALLEST = 16  # pixels of a cell
_LARGEST_FILE = 1 << 27
_JUST_OUTSIDE = 1 + 1e-9

_STORED = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8"}

# Opaque enough to be told apart on white and on black.
_INSIDE, _OUTSIDE, _NOT_FINITE = (64, 128, 196), (214, 48, 38), (150, 70, 190)


@dataclass(frozen=True, slots=True)
class Picture:
    """An image of `width` x `height` pixels as a data: URI, with its caption and a description."""

    uri: str
    width: int
    height: int
    caption: str
    description: str


def pictures(dump: Path, result: str) -> list[Picture]:
    """Pictures from the tensors of a dump, for "output" or "lse"; none if they are not there, or if all elements are
    inside their bounds, as after a failure of another kind."""
    ratio = _ratio(dump, result)
    if ratio is None or ratio.size == 0 or not (ratio > 1).any():
        return []
    wrong = f"{int((ratio > 1).sum()):,} of {ratio.size:,} elements of {result} are outside the bound"
    rows, heads = (_span(name, size) for name, size in zip(("row", "head"), ratio.shape, strict=False))
    if ratio.ndim == 2:
        return [_picture(ratio, f"{result}: {rows} downwards, {heads} across", wrong)]
    columns = _span("column", ratio.shape[2])
    worst = int(ratio.max(axis=(1, 2)).argmax())
    drawn = [_picture(ratio[worst], f"{result}, row {worst}: {heads} downwards, {columns} across", wrong)]
    if ratio.shape[0] > 1:
        drawn.append(_picture(ratio.max(axis=2), f"{result}: {rows} downwards, {heads} across", wrong))
        drawn.append(_picture(ratio.max(axis=1), f"{result}: {rows} downwards, {columns} across", wrong))
    return drawn


def _span(name: str, size: int) -> str:
    return f"{name} 0" if size == 1 else f"{name}s 0 to {size - 1}"


def _ratio(dump: Path, result: str) -> NDArray[np.float64] | None:
    """Distance from the golden value over what is allowed, rounding included; float64, [rows, heads] or [rows, heads,
    columns]. Above 1 where the check fails, inf where the value is not a number or the exact one alone is allowed."""
    try:
        (got,) = _read(dump / "observed.safetensors", (result,))
        golden, low, high = _read(dump / "expected.safetensors", (result, f"{result}_low", f"{result}_high"))
    except (OSError, SafetensorError, KeyError):
        return None
    if not (got.shape == golden.shape == low.shape == high.shape and got.ndim in (2, 3)):
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        # rounding may put the whole interval on one side of the golden value, so the farther end counts
        ratio = np.abs(got - golden) / np.maximum(np.abs(low - golden), np.abs(high - golden))
        inside = (got >= low) & (got <= high) | (got == golden)
        inside |= np.isnan(golden) & ~np.isfinite(got)  # where the golden value is NaN, infinity is right too
    ratio = np.nan_to_num(ratio, nan=np.inf, posinf=np.inf)
    return np.where(inside, np.minimum(np.where(got == golden, 0.0, ratio), 1.0), np.maximum(ratio, _JUST_OUTSIDE))


def _read(path: Path, names: Sequence[str]) -> list[NDArray[np.float64]]:
    """Floating-point tensors of a safetensors file, in float64. Raises OSError, SafetensorError or KeyError where that
    is not there, not such a file, larger than a dump's file can be, or without these tensors."""
    if path.stat().st_size > _LARGEST_FILE:
        raise KeyError(path)
    tensors = dict(deserialize(path.read_bytes()))
    return [_numbers(tensors[name]).reshape(tensors[name]["shape"]) for name in names]


def _numbers(tensor: dict[str, Any]) -> NDArray[np.float64]:
    stored = np.frombuffer(tensor["data"], _STORED[tensor["dtype"]])
    if tensor["dtype"] == "BF16":  # the upper half of a float32
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float64)


def _picture(ratio: NDArray[np.float64], caption: str, wrong: str) -> Picture:
    """A picture of ratio [rows, columns]."""
    row, column = np.unravel_index(ratio.argmax(), ratio.shape)
    cells = _coarse(_coarse(ratio).T).T
    rows, columns = cells.shape
    width = columns * max(1, min(_TALLEST, _WIDTH // columns))
    height = rows * max(1, min(_TALLEST, _HEIGHT // rows))
    uri = "data:image/png;base64," + base64.b64encode(_png(_colours(cells))).decode()
    return Picture(uri, width, height, caption, f"{caption}. {wrong}, the worst at ({row}, {column}).")


def _coarse(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """At most `_CELLS` rows, each the worst of those that it stands for."""
    step = -(-ratio.shape[0] // _CELLS)
    return np.maximum.reduceat(ratio, np.arange(0, ratio.shape[0], step), axis=0)


def _colours(ratio: NDArray[np.float64]) -> NDArray[np.uint8]:
    """RGBA [rows, columns, 4]: stronger the worse, in another colour from the bound on."""
    colours = np.empty((*ratio.shape, 4), np.uint8)
    inside, finite = ratio <= 1, np.isfinite(ratio)
    colours[..., :3] = np.where(inside[..., None], _INSIDE, np.where(finite[..., None], _OUTSIDE, _NOT_FINITE))
    with np.errstate(divide="ignore"):
        decades = np.clip(np.log10(np.where(finite, ratio, 1.0)), 0, 3)
    opacity = np.where(inside, 0.08 + 0.42 * np.clip(ratio, 0, 1), np.where(finite, 0.7 + 0.1 * decades, 1.0))
    colours[..., 3] = np.round(255 * opacity)
    return colours


def _png(colours: NDArray[np.uint8]) -> bytes:
    """A PNG file of RGBA pixels [rows, columns, 4]: https://www.w3.org/TR/png-3/."""
    rows, columns, _ = colours.shape
    lines = np.insert(colours.reshape(rows, -1), 0, 0, axis=1)  # filter type 0 before each line
    header = struct.pack(">IIBBBBB", columns, rows, 8, 6, 0, 0, 0)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
