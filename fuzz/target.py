"""The kernel under test, ours or anyone's, behind one calling convention."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fuzz.options import DEFAULT_KERNEL, UsageError
from kernel.contract import NUM_HEADS, Inputs

OPERANDS = tuple(field.name for field in fields(Inputs))
RESULTS = ("output", "lse")


@dataclass(frozen=True, slots=True)
class Target:
    """A kernel that is called with the eight operands by name.

    `destination_passing`: the function writes into buffers that it is given as `output` and `lse`.
    """

    spec: str
    function: Callable[..., Any]
    destination_passing: bool

    def __call__(
        self, inputs: Inputs, output: torch.Tensor | None = None, lse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the kernel once; returns its output and lse as it gives them, whatever their shapes and dtypes.

        A destination-passing kernel writes into `output` [total_q, 16, 512] and `lse` [total_q, 16], which are
        allocated where they are not given; for any other kernel they are ignored.

        Raises:
            TypeError: the function returned something that is not one output and one lse.
        """
        if not self.destination_passing:
            return self._pair(self.function(**inputs.operands()))
        if output is None:
            output = torch.empty(inputs.q_nope.shape, dtype=inputs.q_nope.dtype, device=inputs.device)
        if lse is None:
            lse = torch.empty((inputs.total_q, NUM_HEADS), dtype=torch.float32, device=inputs.device)
        returned = self.function(**inputs.operands(), output=output, lse=lse)
        return (output, lse) if returned is None else self._pair(returned)

    def _pair(self, returned: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(returned, Mapping):
            missing = [name for name in RESULTS if name not in returned]
            if missing:
                raise TypeError(f"{self.spec} returned a dict without {missing[0]!r}; it has {sorted(returned)}")
            returned = tuple(returned[name] for name in RESULTS)
        if not isinstance(returned, Sequence) or len(returned) != len(RESULTS):
            raise TypeError(f"{self.spec} returned {_described(returned)}, not (output, lse) or a dict of them")
        for name, result in zip(RESULTS, returned, strict=True):
            if not isinstance(result, torch.Tensor):
                raise TypeError(f"{self.spec} returned {_described(result)} as {name}, not a tensor")
        return returned[0], returned[1]


def load(spec: str = DEFAULT_KERNEL) -> Target:
    """The kernel that `module:function` or `path/file.py:function` names. Modules are also looked for in the current
    directory. `import kernel` comes first, so that a Triton kernel runs in the interpreter where there is no GPU.

    Raises:
        UsageError: what is wrong with the spec, the module, the function or its signature, in one line.
    """
    where, separator, name = spec.rpartition(":")
    if not separator or not where or not name:
        raise UsageError(f"--kernel {spec}: expected module:function or path/file.py:function")
    importlib.import_module("kernel")
    module = _module(spec, where)
    function: Any = module
    for part in name.split("."):
        if not hasattr(function, part):
            near = difflib.get_close_matches(part, dir(function), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"--kernel {spec}: {where} has no {part!r}{hint}")
        function = getattr(function, part)
    if not callable(function):
        raise UsageError(f"--kernel {spec}: {name!r} is {_described(function)}, not a function")
    return Target(spec, function, _takes_destinations(spec, function))


def _module(spec: str, where: str) -> ModuleType:
    is_file = where.endswith(".py") or "/" in where
    if is_file and not Path(where).is_file():
        raise UsageError(f"--kernel {spec}: there is no file {where}")
    try:
        if is_file:
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


def _takes_destinations(spec: str, function: Callable[..., Any]) -> bool:
    """Whether the function has parameters `output` and `lse`.

    Raises:
        UsageError: the function cannot be called with the eight operands by name.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False  # a built-in that does not tell: the first call will
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
    destinations = [name for name in RESULTS if name in by_name]
    if len(destinations) == 1:
        raise UsageError(f"--kernel {spec}: the function takes {destinations[0]} but not both of output and lse")
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind not in optional
        if required and not (name in by_name and name in OPERANDS + RESULTS):
            raise UsageError(f"--kernel {spec}: the function needs {name}, which is no operand of the definition")
    return bool(destinations)


def _last_words(error: BaseException) -> str:
    """An exception in one line, with the place in the user's file where it is a syntax error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    return " ".join(f"{type(error).__name__}: {error}".split())


def _described(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
