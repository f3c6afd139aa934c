"""Numbers and times as people read them."""

from __future__ import annotations

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
