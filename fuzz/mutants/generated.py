"""Mutants that follow from the kernel's syntax tree: comparisons, constants, masks, casts and index arithmetic.

Only functions that compute or launch are mutated, not the checks of operands or the repairs of the interpreter. A name
says where and what, as in `attend: key < end -> key <= end`; a number counts equal ones in a function. So it lasts as
long as the expression, and a list of equivalent mutants can refer to it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from fuzz.mutants.edit import Sources, functions

MODULES = ("attend.py", "host.py", "lone.py", "lookup.py", "plan.py", "merge.py", "prefill.py", "short.py", "split.py")
HOPPER_MODULES = ("found.py", "listing.py", "prefill_hopper.py", "rest.py", "schedule.py")
# Functions of the others that the kernel for Hopper alone comes to.
FOR_HOPPER = (
    "_launch_hopper", "_launch_schedule", "Plan.items", "Plan.way_to_items", "find_requests", "count_chunks",
    "is_split_in_list",
)  # fmt: skip
# Calls whose arguments are shapes, axes and layouts: anything else in their place does not compile.
SHAPES = re.compile(
    r"(tl|gl)\.(arange|zeros|full|program_id|num_programs|allocate_shared_memory|warp_specialize|inline_asm_elementwise)"
    r"|torch\.empty|.*Layout|.*\.permute"
)
FIRST_ALONE = re.compile(r"(tl|gl)\.(sum|max|min|cumsum|multiple_of|convert_layout)")
# Host functions that call the kernel for the user's sake, and what has no effect but on speed.
SKIPPED_FUNCTIONS = ("run", "call", "_run_on_gpu", "plan_emulated")
# Functions that a GPU alone runs.
ON_A_GPU = (
    "plan_on", "plan_for", "Plan.options", "Plan.schedule_constants", "Plan.hopper_constants", "Plan.rest_constants",
    "why_not_listed", "_let_rest_begin",
)  # fmt: skip
SPEED = ("num_stages", "num_warps", "do_not_specialize", "is_async")

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated mutant: its name, what kind of operator made it, and the place in the syntax tree that it changes."""

    name: str
    kind: str
    path: str
    function: str
    node: int
    variant: int

    def apply(self, sources: Sources) -> Sources:
        """The module that it changes, changed; of the same sources that it was generated from."""
        tree = ast.parse(sources[self.path])
        target = _nodes(functions(tree)[self.function])[self.node]
        _, replacement = _variants(target)[self.variant]
        _Replace(target, replacement).visit(tree)
        return {self.path: ast.unparse(ast.fix_missing_locations(tree))}


def generate(sources: Sources, for_hopper: bool) -> Iterator[Generated]:
    """All mutants of the kernel that every GPU runs, or of what the one for Hopper has besides, in the order of the
    source."""
    for path in (*MODULES, *HOPPER_MODULES):
        for function, tree in functions(ast.parse(sources[path])).items():
            if function in SKIPPED_FUNCTIONS + ON_A_GPU:
                continue
            if for_hopper != (path in HOPPER_MODULES or function in FOR_HOPPER):
                continue
            names: Counter[str] = Counter()
            around = _parents(tree)
            for index, node in enumerate(_nodes(tree)):
                for variant, (kind, changed) in enumerate(_variants(node)):
                    name = f"{function}: {_spelled(node, changed, around)}"
                    names[name] += 1
                    if names[name] > 1:
                        name += f" ({names[name]})"
                    yield Generated(name, kind, path, function, index, variant)


def _nodes(function: ast.FunctionDef) -> list[ast.expr]:
    """The expressions in the body of a function that may be mutated."""
    nodes: list[ast.expr] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.keyword) and node.arg in SPEED:
            return
        if isinstance(node, ast.Call) and SHAPES.fullmatch(ast.unparse(node.func)):
            return
        if isinstance(node, ast.expr):
            nodes.append(node)
        if isinstance(node, ast.Call) and FIRST_ALONE.fullmatch(ast.unparse(node.func)):
            visit(node.args[0])
            return
        for field, value in ast.iter_fields(node):
            if field == "annotation" or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                continue
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST):
                    visit(part)

    for statement in function.body:
        visit(statement)
    return nodes


def _variants(node: ast.expr) -> list[tuple[str, ast.expr]]:
    """What an expression may be turned into, with the kind of the operator."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        return [("comparison", ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])]()], node.comparators))]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        kind = "mask" if isinstance(node.op, ast.BitAnd | ast.BitOr) else "index"
        return [(kind, ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right))]
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return [("mask", ast.BoolOp(other, node.values))]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        return [("mask" if isinstance(node.op, ast.Not) else "constant", node.operand)]
    if isinstance(node, ast.Constant):
        return _constants(node.value)
    return _calls(node) if isinstance(node, ast.Call) else []


def _constants(value: object) -> list[tuple[str, ast.expr]]:
    if isinstance(value, bool):
        return [("constant", ast.Constant(not value))]
    return [("constant", ast.Constant(value + 1))] if isinstance(value, int | float) else []


def _calls(node: ast.Call) -> list[tuple[str, ast.expr]]:
    name = ast.unparse(node.func).removeprefix("gl.").removeprefix("tl.")
    if name == "where":
        return [("mask", node.args[1]), ("mask", node.args[2])]
    if name in ("minimum", "maximum"):
        return [("mask", node.args[0]), ("mask", node.args[1])]
    if name in ("load", "store", "load_rows"):
        keywords = [keyword for keyword in node.keywords if keyword.arg not in ("mask", "other")]
        return [("mask", ast.Call(node.func, node.args, keywords))] if len(keywords) < len(node.keywords) else []
    if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
        return [("cast", node.func.value)]
    return []


def _spelled(node: ast.expr, changed: ast.expr, around: dict[ast.expr, ast.AST]) -> str:
    """What is changed, a number with what is around it."""
    parent = around.get(node)
    if not isinstance(node, ast.Constant) or not isinstance(parent, ast.expr):
        return f"{_short(node)} -> {_short(changed)}"
    before = _short(parent)
    _Replace(node, changed).visit(parent)
    after = _short(parent)
    _Replace(changed, node).visit(parent)
    return f"{before} -> {after}"


def _parents(tree: ast.AST) -> dict[ast.expr, ast.AST]:
    return {
        child: parent
        for parent in ast.walk(tree)
        for child in ast.iter_child_nodes(parent)
        if isinstance(child, ast.expr)
    }


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 70 else f"{text[:45]} ... {text[-20:]}"


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self._new if node is self._old else self.generic_visit(node)
