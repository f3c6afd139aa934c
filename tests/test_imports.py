"""Which package may import which, read from the syntax trees; docs/architecture.md says why."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("kernel", "reference", "fuzz", "benchmarks", "tests")
# The packages of others that each of ours may import anywhere, and those that a function may import when it is called.
OTHERS = {
    "kernel": {"torch", "triton", "numpy"},
    "reference": {"torch", "triton"},
    # markupsafe is part of jinja2's interface, and xdist is pytest-xdist.
    "fuzz": {"torch", "numpy", "pytest", "xdist", "hypothesis", "safetensors", "rich", "jinja2", "markupsafe"},
    "benchmarks": {"torch", "triton"},
}
LAZY = {"fuzz/cluster/": {"ray"}, "fuzz/corpus.py": {"redis"}, "fuzz/doctor.py": {"triton"}}
# An adapter is loaded by its name as a kernel under test, so the package that it adapts is imported then.
ADAPTERS = {
    "flashinfer_mla": "flashinfer",
    "sglang_extend": "sglang",
    "vllm_flash_mla": "vllm",
    "vllm_triton_mla": "vllm",
}
# The fuzzer meets our kernel as it meets anyone's, but for what mutates it and what says how it runs here.
KNOW_THE_KERNEL = {"fuzz/mutants/package.py": "kernel", "fuzz/doctor.py": "kernel.plan"}


@dataclass(frozen=True)
class Import:
    """`lazy`: within a function, or for a type checker alone."""

    path: str
    line: int
    module: str
    lazy: bool

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.module}{' lazily' if self.lazy else ''}"


def imports_of(path: str, text: str) -> Iterator[Import]:
    """All imports of a module at `path`; `from package import name` is an import of package.name."""
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(text), False)]
    while waiting:
        node, lazy = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (Import(path, node.lineno, alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = path.split("/")[: -node.level] if node.level else []
            base = ".".join([*parts, *filter(None, [node.module])])
            yield from (Import(path, node.lineno, f"{base}.{alias.name}", lazy) for alias in node.names)
        inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_for_types(node)
        waiting += [(child, lazy or inner) for child in ast.iter_child_nodes(node)]


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def in_package(package: str) -> list[Import]:
    paths = sorted((ROOT / package).rglob("*.py"))
    if not paths:
        pytest.skip(f"installed without {package}/")
    return [one for path in paths for one in imports_of(path.relative_to(ROOT).as_posix(), path.read_text())]


def is_within(one: Import, module: str) -> bool:
    return f"{one.module}.".startswith(f"{module}.")


def test_imports_are_read_wherever_they_stand_and_however_they_are_written():
    text = "import a.b, c\nfrom . import d\nfrom ..e import f\ndef g():\n    if h:\n        import i\n"
    found = {(one.module, one.lazy) for one in imports_of("x/y/z.py", text)}
    assert found == {("a.b", False), ("c", False), ("x.y.d", False), ("x.e.f", False), ("i", True)}


def test_the_kernel_imports_nothing_of_ours():
    assert not [str(one) for one in in_package("kernel") if one.package in OURS and one.package != "kernel"]


def test_the_reference_knows_the_contract_and_nothing_else_of_ours():
    ours = [one for one in in_package("reference") if one.package in OURS and one.package != "reference"]
    assert not [str(one) for one in ours if not is_within(one, "kernel.contract")]


def test_the_fuzzer_knows_of_the_kernel_its_contract_alone():
    ours = [one for one in in_package("fuzz") if one.package in OURS and one.package not in ("fuzz", "reference")]
    known = [one for one in ours if is_within(one, "kernel.contract")]
    allowed = [one for one in ours if one.path in KNOW_THE_KERNEL and is_within(one, KNOW_THE_KERNEL[one.path])]
    assert not [str(one) for one in ours if one not in known and one not in allowed]
    assert {one.path for one in allowed} == set(KNOW_THE_KERNEL)


def test_nothing_but_tests_imports_tests():
    assert not [str(one) for package in OURS[:-1] for one in in_package(package) if one.package == "tests"]


@pytest.mark.parametrize("package", OTHERS)
def test_packages_of_others_are_imported_only_where_they_are_required(package):
    """What is optional is imported by the function that needs it, so that all else works without it."""
    wrong = []
    for one in in_package(package):
        if one.package in OTHERS[package] | sys.stdlib_module_names | set(OURS):
            continue
        lazily = {other for place, others in LAZY.items() if one.path.startswith(place) for other in others}
        adapted = ADAPTERS.get(Path(one.path).stem) if one.path.startswith("fuzz/adapters/") else None
        if not (one.lazy and one.package in lazily) and one.package != adapted:
            wrong.append(str(one))
    assert not wrong


def test_adapters_are_loaded_by_name_alone():
    adapters = [one for one in in_package("fuzz") if is_within(one, "fuzz.adapters")]
    assert not [str(one) for one in adapters if not one.path.startswith("fuzz/adapters/")]
