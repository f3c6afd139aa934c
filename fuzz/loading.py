"""From what --kernel takes to the kernel under test: the module, file or solution imported, its signature looked at."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from fuzz import solution
from fuzz.options import DEFAULT_KERNEL, UsageError
from fuzz.spec import is_file, located
from fuzz.target import OPERANDS, RESULTS, Function, described
from reference.profile import DEFAULT_PROFILE, PROFILES, Profile


def load(spec: str = DEFAULT_KERNEL, profile: str = DEFAULT_PROFILE.name) -> Function:
    """The kernel that `module:function`, `path/file.py:function` or the FlashInfer-Bench solution `path.json` names,
    to be judged by a numerics profile of `reference.profile`. Modules are also looked for in the current directory.
    `import kernel` comes first, so that a Triton kernel runs in the interpreter where there is no GPU.

    Raises:
        UsageError: what is wrong with the spec, the module, the function or its signature, in one line.
    """
    importlib.import_module("kernel")
    where, name = located(spec)
    if not name:
        return _solution(spec, PROFILES[profile])
    module = _module(spec, where)
    function: Any = module
    for part in name.split("."):
        if not hasattr(function, part):
            near = difflib.get_close_matches(part, dir(function), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"--kernel {spec}: {where} has no {part!r}{hint}")
        function = getattr(function, part)
    if not callable(function):
        raise UsageError(f"--kernel {spec}: {name!r} is {described(function)}, not a function")
    return of_function(function, spec, profile)


def of_function(function: Callable[..., Any], spec: str, profile: str = DEFAULT_PROFILE.name) -> Function:
    """A function as the kernel under test, called `spec` in what is said of it.

    Raises:
        UsageError: it cannot be called with the eight operands by name.
    """
    destinations = _destinations(spec, function)
    return Function(spec, function, bool(destinations), destinations != ("output",), PROFILES[profile])


def _solution(spec: str, profile: Profile) -> Function:
    try:
        found = solution.read(Path(spec))
        return Function(spec, solution.load(found), found.destination_passing, profile=profile)
    except UsageError as error:
        raise UsageError(f"--kernel {error}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"--kernel {spec}: its sources cannot be imported: {_last_words(error)}") from error


def _module(spec: str, where: str) -> ModuleType:
    try:
        if is_file(where):
            return _module_from_file(Path(where).resolve())
        if str(Path.cwd()) not in sys.path and "" not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(error.name + ".")):
            raise UsageError(f"--kernel {spec}: there is no module {error.name!r} on the path") from error
        raise UsageError(f"--kernel {spec}: {where} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"--kernel {spec}: {where} cannot be imported: {_last_words(error)}") from error


def _module_from_file(path: Path) -> ModuleType:
    """Import a file as `python path` would: its own directory comes first on the path."""
    name = "kernel_under_test_" + path.stem
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise ImportError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(found)
    sys.path.insert(0, str(path.parent))
    sys.modules[name] = module  # Triton and dataclasses look their module up by name
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _destinations(spec: str, function: Callable[..., Any]) -> tuple[str, ...]:
    """Which of the parameters `output` and `lse` the function has.

    Raises:
        UsageError: the function cannot be called with the eight operands by name.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()  # a built-in that does not tell: the first call will
    by_name = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    missing = [name for name in OPERANDS if name not in by_name]
    if missing and not takes_any:
        raise UsageError(
            f"--kernel {spec}: the function takes no {', '.join(missing)}; "
            f"it is called by name with {', '.join(OPERANDS)}"
        )
    destinations = tuple(name for name in RESULTS if name in by_name)
    if destinations == ("lse",):
        raise UsageError(f"--kernel {spec}: the function takes lse but not output")
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind not in optional
        if required and not (name in by_name and name in OPERANDS + RESULTS):
            raise UsageError(f"--kernel {spec}: the function needs {name}, which is no operand of the definition")
    return destinations


def _last_words(error: BaseException) -> str:
    """An exception in one line, with the place in the user's file where it is a syntax error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    return " ".join(f"{type(error).__name__}: {error}".split())
