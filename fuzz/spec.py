"""What --kernel takes, looked at without importing it, so that what is misspelt is said before any worker starts."""

from __future__ import annotations

import importlib.util
from importlib.machinery import PathFinder
from pathlib import Path

from fuzz.options import UsageError


def located(spec: str) -> tuple[str, str]:
    """The module or file of `module:function` or `path/file.py:function`, and the function's name; of a solution its
    path and "".

    Raises:
        UsageError: the spec has none of these forms, or there is no such file or module.
    """
    where, _, name = (spec, "", "") if spec.endswith(".json") else spec.rpartition(":")
    if not where or (not name and where != spec):
        raise UsageError(f"--kernel {spec}: expected module:function, path/file.py:function or a solution's path.json")
    package = where.partition(".")[0]
    if is_file(where):
        if not Path(where).is_file():
            raise UsageError(f"--kernel {spec}: there is no file {where}")
    elif not _can_be_found(package):
        raise UsageError(f"--kernel {spec}: there is no module {package!r} on the path")
    return where, name


def is_file(where: str) -> bool:
    """Whether the first part of a spec is the path of a file, and not the name of a module."""
    return where.endswith((".py", ".json")) or "/" in where


def _can_be_found(package: str) -> bool:
    try:
        return bool(PathFinder.find_spec(package, [str(Path.cwd())]) or importlib.util.find_spec(package))
    except (ImportError, ValueError):  # of a name that can be none
        return False
