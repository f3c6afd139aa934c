"""Edits of source by meaning: what is replaced is found in the syntax tree, however it is laid out.

An edit that no longer fits its source raises StaleEdit. It never passes in silence: a mutant that changes nothing would
survive, and one that changes the wrong place would be killed for nothing.
"""

from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Sources = dict[str, str]  # path -> text of a module


class StaleEdit(Exception):
    """An edit does not fit the source any more."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace an expression, or a run of statements, within a function.

    function  `name` or `Class.name`, in whichever module defines it; `path:name`; or `path`, for a whole module
    before    what stands there, as Python source
    after     what is put in its place; statements may be replaced by nothing
    count     in how many places it must stand; all are replaced
    """

    function: str
    before: str
    after: str
    count: int = 1


def apply(edits: Sequence[Edit], sources: Sources) -> Sources:
    """The sources that the edits change, changed. Raises StaleEdit."""
    trees: dict[str, ast.Module] = {}
    for edit in edits:
        path, name = _find(edit.function, sources)
        tree = trees.setdefault(path, ast.parse(sources[path]))
        scope = functions(tree)[name] if name else tree
        count = _replace(scope, edit)
        if count != edit.count:
            raise StaleEdit(f"{path}, {edit.function}: {edit.before!r} stands there {count} times, not {edit.count}")
    return {path: ast.unparse(ast.fix_missing_locations(tree)) for path, tree in trees.items()}


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions of a module and of its classes, by name and Class.name."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}": part for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def _find(function: str, sources: Sources) -> tuple[str, str]:
    """The one module that is named or that defines the function, and the function's name, "" for all of the module."""
    path, _, name = function.rpartition(":")
    if function in sources:
        return function, ""
    # Looked for in the text first: parsing a whole repository for each edit takes a while.
    mentioned = [
        each for each, text in sources.items() if path in ("", each) and f"def {name.rpartition('.')[2]}(" in text
    ]
    defining = [each for each in mentioned if name in functions(ast.parse(sources[each]))]
    if len(defining) != 1:
        raise StaleEdit(f"{function} is defined in {len(defining)} modules, not one: {', '.join(defining) or 'none'}")
    return defining[0], name


def _replace(scope: ast.AST, edit: Edit) -> int:
    """Make an edit; returns in how many places."""
    old, new = _parsed(edit.before), _parsed(edit.after)
    if isinstance(old, ast.expr) and isinstance(new, ast.expr):
        replacing = _Expressions(old, new)
        replacing.visit(scope)
        return replacing.count
    return _replace_statements(scope, _statements(old), _statements(new))


def _parsed(source: str) -> ast.expr | list[ast.stmt]:
    try:
        return ast.parse(source.strip(), mode="eval").body
    except SyntaxError:
        return ast.parse(textwrap.dedent(source)).body


def _statements(parsed: ast.expr | list[ast.stmt]) -> list[ast.stmt]:
    return [ast.Expr(parsed)] if isinstance(parsed, ast.expr) else parsed


def _same(one: ast.AST, other: ast.AST) -> bool:
    return type(one) is type(other) and ast.dump(one) == ast.dump(other)


@dataclass
class _Expressions(ast.NodeTransformer):
    old: ast.expr
    new: ast.expr
    count: int = 0

    def visit(self, node: ast.AST) -> ast.AST:
        if _same(node, self.old):
            self.count += 1
            return copy.deepcopy(self.new)
        return self.generic_visit(node)


def _replace_statements(scope: ast.AST, old: list[ast.stmt], new: list[ast.stmt]) -> int:
    """Replace every run of statements equal to `old`; returns how many there were."""
    places = [
        (block, start)
        for node in ast.walk(scope)
        for block in _blocks(node)
        for start in range(len(block) - len(old) + 1)
        if all(map(_same, block[start : start + len(old)], old))
    ]
    for block, start in reversed(places):
        block[start : start + len(old)] = copy.deepcopy(new) or [ast.Pass()]
    return len(places)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
