"""Reports of racecheck on code that Triton generates itself: the hand-over of `warp_specialize`.

The default warps store the number of a part of the kernel for each worker warp into shared memory, all warps meet at
barrier 1, the workers read it, and all meet there again before the next one is stored. racecheck calls that a race.
Such code has no lines but those of the kernel's head and of the call.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType

from fuzz.sanitizer.log import Entry, Report

_CALL = "warp_specialize"
_ACCESS = re.compile(r"\w+ access at .+?\+0x[0-9a-f]+ in (\S+):(\d+)")


@dataclass(frozen=True, slots=True)
class Places:
    """Numbers of lines of a file.

    calls  the calls of warp_specialize, without the calls among their arguments, whose code is the kernel's own
    heads  the heads of Triton functions, from the first decorator to the colon
    hosts  the heads of those that have such a call
    """

    calls: frozenset[int]
    heads: frozenset[int]
    hosts: frozenset[int]

    @classmethod
    def of(cls, source: str) -> Places:
        """Those of a source. Raises SyntaxError."""
        calls: set[int] = set()
        heads: set[int] = set()
        hosts: set[int] = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and _specializes(node):
                calls |= _lines(node).difference(*(_lines(inner) for inner in _calls(node) if inner is not node))
            if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
                head = range(node.decorator_list[0].lineno, node.body[0].lineno)
                heads.update(head)
                if any(map(_specializes, _calls(node))):
                    hosts.update(head)
        return cls(frozenset(calls), frozenset(heads), frozenset(hosts))

    @classmethod
    def from_json(cls, value: Mapping[str, list[int]]) -> Places:
        return cls(**{name: frozenset(lines) for name, lines in value.items()})

    def to_json(self) -> dict[str, list[int]]:
        return {name: sorted(lines) for name, lines in asdict(self).items()}


def of_loaded() -> dict[str, Places]:
    """The places in this process's modules of Triton code that call warp_specialize, by the name of the file, which is
    all that a report has. Two modules whose files have the same name are left out."""
    files: dict[str, set[Path]] = defaultdict(set)
    for names in [dict(vars(module)) for module in list(sys.modules.values()) if isinstance(module, ModuleType)]:
        file = str(names.get("__file__"))
        if file.endswith(".py") and any(str(type(value).__module__).startswith("triton.") for value in names.values()):
            files[Path(file).name].add(Path(file).resolve())
    found = {}
    for name, paths in files.items():
        source = _read(paths.pop()) if len(paths) == 1 else ""
        if f"{_CALL}(" in source:
            found[name] = Places.of(source)
    return found


def set_aside(report: Report, places: Mapping[str, Places]) -> tuple[Report, list[str]]:
    """A report without those on hand-overs, and where these were. All stay if the log does not tell each: what it does
    not tell may be anything."""
    if report.count > len(report.entries):
        return report, []
    aside = [entry for entry in report.entries if _is_handover(entry, places)]
    kept = tuple(entry for entry in report.entries if entry not in aside)
    where = [", ".join(sorted({f"{file}:{line}" for file, line in _accesses(entry)})) for entry in aside]
    return replace(report, entries=kept, count=len(kept)), where


def _is_handover(entry: Entry, places: Mapping[str, Places]) -> bool:
    accesses = _accesses(entry)
    if entry.kind != "race" or not accesses or len(accesses) != str(entry).count(" access at "):
        return False
    if any(file not in places or line not in places[file].calls | places[file].heads for file, line in accesses):
        return False
    return any(line in places[file].calls | places[file].hosts for file, line in accesses)


def _accesses(entry: Entry) -> list[tuple[str, int]]:
    """The file and the line of each access."""
    return [(Path(file).name, int(line)) for file, line in _ACCESS.findall(str(entry))]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _calls(node: ast.AST) -> list[ast.Call]:
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]


def _specializes(call: ast.Call) -> bool:
    return _name(call.func) == _CALL


def _is_jit(decorator: ast.expr) -> bool:
    return _name(decorator.func if isinstance(decorator, ast.Call) else decorator) == "jit"


def _name(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _lines(call: ast.Call) -> set[int]:
    return set(range(call.lineno, (call.end_lineno or call.lineno) + 1))
