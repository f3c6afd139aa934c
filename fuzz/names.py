"""Whether `kernel` and `reference` are our packages: a kernel.py of another project may stand before them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from fuzz.options import UsageError

HOME = Path(__file__).resolve().parents[1]


def check_packages() -> None:
    """Raise UsageError where a module of another project has the name of one of our packages."""
    for name in ("kernel", "reference"):
        module = sys.modules.get(name)
        found = module.__spec__ if module is not None else importlib.util.find_spec(name)
        origin = None if found is None or found.origin is None else Path(found.origin).resolve()
        if origin is None or origin.parent != HOME / name:
            raise UsageError(
                f"{origin or 'nothing'} is what `import {name}` finds instead of the package {name} that belongs to"
                f" mla-fuzz: `python -m fuzz run --kernel path/file.py:function` works beside it"
            )
