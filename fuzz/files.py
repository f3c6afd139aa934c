"""Files that nobody sees half of, and JSON that every reader takes: numbers that are not finite are texts in it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


def strict(value: Any) -> Any:
    """The value with infinities and NaN as strings, and tuples as lists, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value


def number(value: float | str | None) -> float | None:
    """A number as `strict` writes it, back as a float."""
    return None if value is None else float(value)


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON so that no reader, and no crash, ever sees half of it."""
    write_text(path, json.dumps(strict(value), allow_nan=False, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
