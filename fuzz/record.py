"""What the record of a dump, its case.json, must be, field by field; one that is not may come from anywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from fuzz.buckets import is_bucket_name
from fuzz.case import FAMILIES
from fuzz.options import UsageError
from fuzz.reproducer import SCHEMA, Reproducer
from fuzz.tensorfile import read_regular
from kernel.contract import CONTRACTS, DEFINITION, PROMISES
from reference.profile import PROFILES

_LIMIT = 1 << 20  # bytes of a file


def read_record(path: Path) -> Reproducer:
    """The record in a file.

    Raises:
        UsageError: what is wrong with it.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        _refuse(path, "it is not an object")
    if value.get("schema") != SCHEMA:
        _refuse(path, f"its schema version is {str(value.get('schema'))[:20]}, this program reads {SCHEMA}")
    for name, (is_valid, what) in _FIELDS.items():
        if name not in value:
            _refuse(path, f"{name} is missing")
        if not is_valid(value[name]):
            _refuse(path, f"{name} is {json.dumps(value[name])[:60]}, must be {what}")
    given = {name: value[name] for name in _FIELDS}
    for name in ("without", "strata", "others"):
        given[name] = tuple(given[name])
    if given["finding"]["check"] != given["check"]:
        _refuse(path, f"finding is about {given['finding']['check']!r}, the dump about {given['check']!r}")
    return Reproducer(**given)


def read_json(path: Path) -> Any:
    """Strict JSON from a file of no more than a megabyte, no link. Raises UsageError."""

    def no_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(read_regular(path, _LIMIT).decode("utf-8"), parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else f"{error}"
        raise UsageError(f"{path}: it is truncated, or no JSON: {reason}") from None


def _refuse(path: Path, reason: str) -> NoReturn:
    raise UsageError(f"{path}: {reason}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 4096 and value.isprintable()


def _is_message(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    """A number or None, as `fuzz.files.strict` writes it."""
    if isinstance(value, str):
        return value in ("inf", "-inf", "nan")
    return value is None or (isinstance(value, (int, float)) and math.isfinite(value))


def _is_finding(value: object) -> bool:
    if not isinstance(value, dict) or not _is_text(value.get("check")) or not _is_message(value.get("detail")):
        return False
    index, allowed = value.get("index"), value.get("allowed")
    return (
        (index is None or (_list_of(int)(index) and len(index) <= 8))
        and (allowed is None or (isinstance(allowed, list) and len(allowed) == 2 and all(map(_is_number, allowed))))
        and all(_is_number(value.get(name)) for name in ("got", "expected", "ratio"))
        and _is_text(value.get("rows", ""))
        and _is_text(value.get("variant", ""))
        and _is_text(value.get("cause", ""))
        and _is_message(value.get("printed", ""))
        and _is_message(value.get("message", ""))
    )


def _list_of(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(type(item) is kind for item in value)


def _one_of(*choices: object) -> tuple[Callable[[object], bool], str]:
    return (
        lambda value: type(value) in map(type, choices) and value in choices,
        f"one of {', '.join(map(str, choices))}",
    )


_STRATA = frozenset(f"{family}:{name}" for family, registry in FAMILIES.items() for name in registry)

# field of case.json -> what it must be, as a predicate and in words
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "definition": (lambda value: value == DEFINITION, DEFINITION),
    "bucket": (is_bucket_name, "a name without slashes"),
    "check": (_is_text, "a text"),
    "kernel": (_is_text, "a text"),
    "contract": _one_of(*CONTRACTS),
    "without": (lambda value: _list_of(str)(value) and set(value) <= set(PROMISES), "a list of promises"),
    "profile": _one_of(*PROFILES),
    "case": (lambda value: isinstance(value, dict), "an object"),
    "strata": (lambda value: _list_of(str)(value) and set(value) <= _STRATA, "a list of known strata, family:name"),
    "finding": (_is_finding, "a finding: check, detail, index, got, expected, allowed, ratio, rows"),
    "others": (lambda value: isinstance(value, list) and all(map(_is_finding, value)), "a list of findings"),
    "reproduced": _one_of(True, False, None),
    "wrong": (lambda value: isinstance(value, dict), "an object"),
    "device": (_is_text, "a text"),
    "versions": (
        lambda value: isinstance(value, dict) and all(_is_text(version) for version in value.values()),
        "an object of texts",
    ),
}
