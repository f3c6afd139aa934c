"""A FlashInfer-Bench solution as the kernel under test, and ours as one.

A solution is one JSON file with its sources in it. https://github.com/flashinfer-ai/flashinfer-bench,
flashinfer_bench/data/solution.py: definition, spec (language, entry_point 'path.py::function',
destination_passing_style) and sources (path and content of each file). Its functions are called by position, with the
operands in the definition's order and, in destination-passing style, output and lse behind them.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from fuzz.options import UsageError
from kernel.contract import DEFINITION

_LANGUAGES = ("python", "triton")
_LIMIT = 16 << 20  # bytes of a solution


@dataclass(frozen=True, slots=True)
class Solution:
    """What of a solution decides how it is run; `sources` are path -> content."""

    path: Path
    entry_file: str
    entry_function: str
    destination_passing: bool
    sources: Mapping[str, str]


def read(path: Path) -> Solution:
    """The solution in a file.

    Raises:
        UsageError: in one line, why it is none that can be run here.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LIMIT + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if len(content) > _LIMIT:
        raise UsageError(f"{path}: it has more than the {_LIMIT:,} bytes that a solution may have")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: it is no JSON: {error}") from error
    try:
        return _parsed(path, value)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error


def load(solution: Solution) -> Callable[..., Any]:
    """The solution's function, to be called by name; its sources are imported from a temporary package of its own.

    Raises:
        UsageError: the sources have no such function, or it does not take the operands.
        Exception: whatever importing the sources raises.
    """
    module = _imported(solution)
    function = getattr(module, solution.entry_function, None)
    where = f"{solution.path}: entry_point {solution.entry_file}::{solution.entry_function}"
    if not callable(function):
        raise UsageError(f"{where}: there is no such function in the file")
    count = 10 if solution.destination_passing else 8
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError) as error:
        style = "with" if solution.destination_passing else "without"
        raise UsageError(
            f"{where}: it is called with {count} arguments, as destination_passing_style is"
            f" {str(solution.destination_passing).lower()}: the operands {style} output and lse; {error}"
        ) from error

    def by_name(**arguments: Any) -> Any:
        returned = function(*arguments.values())
        return None if solution.destination_passing else returned

    return by_name


def _parsed(path: Path, value: Any) -> Solution:
    """Raises ValueError naming the field that is wrong."""
    spec = _field(value, "a solution", "spec", dict)
    if _field(value, "a solution", "definition", str) != DEFINITION:
        raise ValueError(f"it solves {value['definition']!r}, not {DEFINITION}")
    language = _field(spec, "spec", "language", str)
    if language not in _LANGUAGES:
        raise ValueError(f"spec.language is {language!r}; only {' and '.join(_LANGUAGES)} can be run here")
    entry = re.fullmatch(r"([^:]+\.py)::([A-Za-z_]\w*)", _field(spec, "spec", "entry_point", str))
    if entry is None:
        raise ValueError(f"spec.entry_point is {spec['entry_point']!r}, must be 'path/file.py::function'")
    style = spec.get("destination_passing_style", True)
    if not isinstance(style, bool):
        raise ValueError(f"spec.destination_passing_style is {style!r}, must be true or false")
    sources = _sources(_field(value, "a solution", "sources", list))
    if entry[1] not in sources:
        raise ValueError(f"spec.entry_point names {entry[1]}, but sources has {', '.join(sources)}")
    return Solution(path, entry[1], entry[2], style, sources)


def _field(value: Any, what: str, name: str, kind: type) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise ValueError(f"{what} without {name}")
    if not isinstance(value[name], kind) or not value[name]:
        names: dict[type, str] = {dict: "an object", list: "a list that is not empty", str: "a text that is not empty"}
        raise ValueError(f"{name} of {what} must be {names[kind]}")
    return value[name]


def _sources(files: Sequence[Any]) -> dict[str, str]:
    sources: dict[str, str] = {}
    for file in files:
        path, content = _field(file, "a source", "path", str), _field(file, "a source", "content", str)
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or not parts or re.search(r"[\\\0]", path):
            raise ValueError(f"the source path {path!r} leads out of the solution")
        if path in sources:
            raise ValueError(f"there are two sources {path!r}")
        sources[path] = content
    return sources


# The temporary directories stay as long as the process: Triton reads a kernel's source when it compiles it.
_packages: dict[str, tempfile.TemporaryDirectory[str]] = {}


def _imported(solution: Solution) -> ModuleType:
    """Import the entry file from a package of its own, so that sources reach each other by relative imports alone, as
    in FlashInfer-Bench, and two solutions never meet."""
    content = json.dumps(sorted(solution.sources.items()))
    package = f"solution_{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    if package not in _packages:
        directory = _packages[package] = tempfile.TemporaryDirectory(prefix="mla-fuzz-solution-")
        for path, text in solution.sources.items():
            place = Path(directory.name, package, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        sys.path.append(directory.name)
        importlib.invalidate_caches()
    parts = PurePosixPath(solution.entry_file).with_suffix("").parts
    return importlib.import_module(".".join((package, *parts)))
