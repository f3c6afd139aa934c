"""Reports of racecheck on kernels of warpgroups, of whose order it takes no notice.

The hand-over of `warp_specialize`, code that Triton generates itself: the default warps store the number of a part of
the kernel for each worker warp into shared memory, all warps meet at barrier 1, the workers read it, and all meet there
again before the next one is stored. Such code has no lines but those of the kernel's head and of the call.

What one warpgroup stores and another loads, which mbarriers put in order: a warpgroup meets at a barrier of its own,
one of its threads arrives for all, and the other warpgroup waits. racecheck reports every such pair of accesses.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from fuzz.sanitizer.log import Entry, Report

_CALL = "warp_specialize"
_ACCESS = re.compile(r"\w+ access at .+?\+0x[0-9a-f]+ in (\S+):(\d+)")


@dataclass(frozen=True, slots=True)
class Places:
    """Numbers of lines of a file.

    calls  the calls of warp_specialize, without the calls among their arguments, whose code is the kernel's own
    heads  the heads of Triton functions, from the first decorator to the colon
    hosts  the heads of those that have such a call
    parts  of each function that such a call gives to warps of its own: the lines of its body and of what it calls
    """

    calls: frozenset[int]
    heads: frozenset[int]
    hosts: frozenset[int]
    parts: tuple[frozenset[int], ...] = ()

    @classmethod
    def of(cls, source: str) -> Places:
        """Those of a source. Raises SyntaxError."""
        calls: set[int] = set()
        heads: set[int] = set()
        hosts: set[int] = set()
        parts: dict[str, frozenset[int]] = {}
        tree = ast.parse(source)
        functions = {
            node.name: node
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list))
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _specializes(node):
                calls |= _lines(node).difference(*(_lines(inner) for inner in _calls(node) if inner is not node))
                parts |= {name: _body(name, functions) for name in _names(node) if name in functions}
            if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
                head = range(node.decorator_list[0].lineno, node.body[0].lineno)
                heads.update(head)
                if any(map(_specializes, _calls(node))):
                    hosts.update(head)
        return cls(frozenset(calls), frozenset(heads), frozenset(hosts), tuple(parts.values()))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Places:
        """Of `to_json`."""
        lines = {name: frozenset(value[name]) for name in ("calls", "heads", "hosts")}
        return cls(**lines, parts=tuple(map(frozenset, value["parts"])))

    def to_json(self) -> dict[str, Any]:
        lines = {name: sorted(getattr(self, name)) for name in ("calls", "heads", "hosts")}
        return {**lines, "parts": [sorted(part) for part in self.parts]}

    def apart(self, line: int, other: int) -> bool:
        """Whether two lines may be of different parts."""
        of_other = {nth for nth, part in enumerate(self.parts) if other in part}
        return any(of_other - {nth} for nth, part in enumerate(self.parts) if line in part)


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
    """A report without those on what racecheck cannot judge, and where these were. All stay if the log does not tell
    each: what it does not tell may be anything."""
    if report.count > len(report.entries):
        return report, []
    aside = [entry for entry in report.entries if entry.kind == "race" and _is_unjudged(_all_accesses(entry), places)]
    kept = tuple(entry for entry in report.entries if entry not in aside)
    where = [", ".join(sorted({f"{file}:{line}" for file, line in _accesses(entry)})) for entry in aside]
    return replace(report, entries=kept, count=len(kept)), where


def _is_unjudged(accesses: Sequence[tuple[str, int]], places: Mapping[str, Places]) -> bool:
    """Whether accesses are those of a hand-over, or the first may be of another part than each of the others."""
    if not accesses or any(file not in places or file != accesses[0][0] for file, _ in accesses):
        return False
    known, lines = places[accesses[0][0]], [line for _, line in accesses]
    if all(line in known.calls | known.heads for line in lines):
        return any(line in known.calls | known.hosts for line in lines)
    return len(lines) > 1 and all(known.apart(lines[0], line) for line in lines[1:])


def _all_accesses(entry: Entry) -> list[tuple[str, int]]:
    """The file and the line of each access; none if one is told without."""
    accesses = _accesses(entry)
    return accesses if len(accesses) == str(entry).count(" access at ") else []


def _accesses(entry: Entry) -> list[tuple[str, int]]:
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


def _names(call: ast.Call) -> list[str]:
    return [node.id for node in ast.walk(call) if isinstance(node, ast.Name)]


def _body(name: str, functions: Mapping[str, ast.FunctionDef]) -> frozenset[int]:
    """The lines of the body of a function, and of all those of its module that it comes to."""
    reached: set[str] = set()
    coming = [name]
    while coming:
        function = coming.pop()
        reached.add(function)
        called = {_name(call.func) for call in _calls(functions[function])}
        coming += [other for other in called if other in functions and other not in reached]
    bodies = [functions[function] for function in reached]
    return frozenset(line for body in bodies for line in range(body.body[0].lineno, (body.end_lineno or 0) + 1))
