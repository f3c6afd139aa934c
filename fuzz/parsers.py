"""What the texts of options mean: a function for each kind, which raises ValueError with the reason."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TypeVar

Parsed = TypeVar("Parsed")


def duration(text: str) -> float:
    """Seconds in '90s', '10m', '8h', '1h30m' or '45' (seconds)."""
    match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text.strip())
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is not a time; write 90s, 10m, 8h or 1h30m")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    total = 3600 * hours + 60 * minutes + seconds
    if total <= 0:
        raise ValueError(f"{text!r} leaves no time at all")
    return total


def positive(text: str) -> int:
    """A whole number of at least one."""
    return _whole(text, least=1)


def seed(text: str) -> int:
    """A whole number that is not negative."""
    return _whole(text, least=0)


def redis_url(text: str) -> str:
    """The address of a Redis server."""
    if re.fullmatch(r"rediss?://[^\s/]+(/\d+)?", text) is None:
        raise ValueError(f"{text!r} is not the address of a Redis server; write redis://HOST:PORT")
    return text


def without_password(text: str) -> str:
    """A text as it may be shown, if there are addresses in it."""
    return re.sub(r"(rediss?://)[^\s/@]*@", r"\1...@", text)


def names(text: str) -> tuple[str, ...]:
    """The names in a comma-separated list."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise ValueError("a comma-separated list of names is needed")
    return found


def workers(text: str) -> str:
    """`auto`, or a number of worker processes, as it is written."""
    if text != "auto" and not text.isdecimal():
        raise ValueError(f"{text!r} is neither auto nor a number")
    return text


def one_of(*choices: str) -> Callable[[str], str]:
    """A parser that accepts the choices alone."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return parse


def _whole(text: str, *, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
    if value < least:
        raise ValueError(f"{value} is less than {least}")
    return value


def reported(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """The parser with its reason kept: argparse shows the text of an ArgumentTypeError, but not of a ValueError."""
    def convert(text: str) -> Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert
