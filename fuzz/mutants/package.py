"""A mutant as a kernel under test: a copy of the kernel package with edited source, imported under another name."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from pathlib import Path

import kernel
from fuzz.loading import load
from fuzz.mutants.edit import Sources
from fuzz.target import Target

NAME = "kernel_mutant"
# Modules that hold no part of the kernel; a copy shares the original ones.
SHARED = ("contract.py", "interpreter.py")


@cache
def kernel_sources() -> Sources:
    """The modules of the kernel package, by file name; read once, so that a run is of one state of them."""
    root = Path(kernel.__file__).parent
    return {path.name: path.read_text() for path in sorted(root.glob("*.py"))}


def load_mutant(changed: Sources, directory: Path) -> Target:
    """Write a copy of the kernel package with `changed` modules into `directory` and import it.

    Once in a process: the names of modules are taken after that. Raises UsageError if it cannot be imported.
    """
    root = directory / NAME
    root.mkdir()
    for path, text in (kernel_sources() | changed).items():
        (root / path).write_text(text)
    for path in SHARED:
        if path not in changed:
            sys.modules[f"{NAME}.{path[:-3]}"] = sys.modules[f"kernel.{path[:-3]}"]
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    return load(f"{NAME}:run")
