"""Which cases can show a mutant at all: those in which the unchanged kernel comes to a statement that it changes.

In all others the mutant does what the unchanged kernel does, and that passed. Statements of device functions are
watched, as Triton's interpreter runs them; what is changed on the host any case may come to, as the host keeps what it
computed once. Lines are those of `ast.unparse`, which mutants are written with: each statement has one of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import SequenceMatcher

from fuzz.mutants.edit import Sources

Place = tuple[str, int]  # file name of a module, number of a line
_MARK = "_came_to"
_JIT = re.compile(r"(triton|gluon)\.jit\b")
_reached: set[Place] = set()


def marked(sources: Sources) -> Sources:
    """The modules that hold device functions, changed so that each statement of those is noted before it runs."""
    found = {}
    for path, text in sources.items():
        tree = _plain(text)
        functions = [*_device_functions(tree)]
        for block in [block for function in functions for block in _blocks(function)]:
            block[:] = [part for one in block for part in (_note(path, one.lineno), one)]
        if functions:
            source = ast.unparse(ast.fix_missing_locations(tree))
            found[path] = f"{source}\nfrom {__name__} import came_to as {_MARK}\n"
    return found


def came_to(path: str, line: int) -> None:
    """What a marked kernel calls."""
    _reached.add((path, line))


@contextmanager
def watched() -> Iterator[set[Place]]:
    """The places that a marked kernel comes to meanwhile, in a set that the next one empties."""
    _reached.clear()
    yield _reached


def places(changed: Sources, sources: Sources) -> frozenset[Place] | None:
    """The statements to one of which the unchanged kernel comes before a mutant can differ from it; None where there is
    no telling."""
    found: set[Place] = set()
    for path, text in changed.items():
        tree = _plain(sources.get(path, ""))
        before, after, functions = ast.unparse(tree).splitlines(), text.splitlines(), _lines_of_functions(tree)
        for tag, start, stop, low, high in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if tag == "equal":
                continue
            lines = set(range(start + 1, stop + 1)) or {start, start + 1}
            within = {line: functions[line] for line in lines if line in functions}
            at_top = any(line[:1].strip() for line in after[low:high])
            if at_top or not within or (start < stop and len(within) < len(lines)):
                return None
            if not _stands_for(before[start:stop], after[low:high]):
                lines = {line for function in within.values() for line in function}
            found |= {(path, line) for line in lines}
    return frozenset(found)


def _stands_for(old: list[str], new: list[str]) -> bool:
    """Whether nothing of the new lines runs unless the first old one does: they lie in its block, or deeper."""
    indents = [len(line) - len(line.lstrip()) for line in (*old[:1], *new)]
    return bool(old) and indents[0] == min(indents) and indents[:2] == indents[:1] * len(indents[:2])


def _plain(text: str) -> ast.Module:
    """The syntax tree with the lines that `ast.unparse` gives."""
    return ast.parse(ast.unparse(ast.parse(text)))


def _device_functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(_JIT.match(ast.unparse(one)) for one in node.decorator_list):
            yield node


def _lines_of_functions(tree: ast.Module) -> Mapping[int, frozenset[int]]:
    """For each line at which a statement of a device function begins, those of the whole function."""
    found: dict[int, frozenset[int]] = {}
    for function in _device_functions(tree):
        lines = frozenset(one.lineno for block in _blocks(function) for one in block)
        found |= dict.fromkeys(lines, lines)
    return found


def _blocks(function: ast.FunctionDef) -> list[list[ast.stmt]]:
    """The function's body and the blocks in it."""
    return [
        block
        for node in ast.walk(function)
        for name in ("body", "orelse")
        if isinstance(block := getattr(node, name, None), list) and block
    ]


def _note(path: str, line: int) -> ast.stmt:
    return ast.parse(f"{_MARK}({path!r}, {line})").body[0]
