"""Numbers, times and lengths as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number of things: '1 case', '1,024 cases'."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def short(number: float) -> str:
    """A number in little space: '950', '1.25k', '3M'."""
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def date(began: str) -> str:
    """The day and time that run.json tells as %Y%m%d-%H%M%S."""
    try:
        return f"{datetime.strptime(began, '%Y%m%d-%H%M%S'):%Y-%m-%d %H:%M}"
    except ValueError:
        return "at an unknown time"


def ratio_text(ratio: float | None) -> str:
    """A ratio as people read it; '-' where nothing was measured."""
    if ratio is None:
        return "-"
    return f"{ratio:.3f}" if math.isfinite(ratio) and ratio < 1000 else f"{ratio:.2g}"


def spans(numbers: Iterable[int], most: int | None = None) -> str:
    """Sorted numbers as '0-3, 7, 9-10', no more than `most` such parts."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in parts[:most]]
    return ", ".join(shown + ["..."] * (len(parts) > len(shown)))


def requests(lengths: Iterable[Sequence[int]], most: int) -> list[str]:
    """The requests of a case, runs (count, q_len, kv_len), no more than `most` of them."""
    runs = [
        f"{counted(count, 'request')} of {counted(q_len, 'query', 'queries')} and {counted(kv_len, 'key')}"
        for count, q_len, kv_len in lengths
    ]
    return runs[:most] + [f"{len(runs) - most} runs more"] * (len(runs) > most) or ["no request"]
