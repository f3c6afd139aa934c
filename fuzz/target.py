"""The kernel under test, ours or anyone's, behind one calling convention."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch

from fuzz import solution
from fuzz.options import DEFAULT_KERNEL, UsageError
from fuzz.spec import is_file, located
from kernel.contract import NUM_HEADS, Inputs
from reference.profile import DEFAULT_PROFILE, PROFILES, Profile

OPERANDS = tuple(field.name for field in fields(Inputs))
RESULTS = ("output", "lse")
_VARIANT = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")  # it is part of the names of directories


class Target(Protocol):
    """The kernel under test as it is called and judged, wherever it runs.

    spec                 what is said of it, and what --kernel takes
    destination_passing  it writes into buffers that it is given as `output` and `lse`
    profile              the numerics that it documents, by which its results are judged
    """

    @property
    def spec(self) -> str: ...

    @property
    def destination_passing(self) -> bool: ...

    @property
    def profile(self) -> Profile: ...

    def __call__(
        self, inputs: Inputs, output: torch.Tensor | None = None, lse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the kernel once; returns its output and lse as it gives them, whatever their shapes and dtypes. The lse
        is None for a kernel that gives none.

        A destination-passing kernel writes into `output` [total_q, 16, 512] and `lse` [total_q, 16], which are
        allocated where they are not given; for any other kernel they are ignored.

        Raises what the kernel does.
        """

    def variant(self, inputs: Inputs, row: int) -> str:
        """Which of its variants computes row `row` of the results; "" where the kernel does not tell."""


@dataclass(frozen=True, slots=True)
class Function:
    """A target that is a function of this process, called with the eight operands by name.

    takes_lse  a destination-passing function takes `lse` too; False: it takes `output` alone

    A function with several code paths may tell which of them computes a row: by an attribute `variant`, a function that
    is called with the operands and `row` by name and returns a short name.

    A call raises TypeError where the function returned something that is not one output and one lse, or a part of an
    operand.
    """

    spec: str
    function: Callable[..., Any]
    destination_passing: bool
    takes_lse: bool = True
    profile: Profile = DEFAULT_PROFILE

    def __call__(
        self, inputs: Inputs, output: torch.Tensor | None = None, lse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        output, lse = self._call(inputs, output, lse)
        for name, result in (("output", output), ("lse", lse)):
            operand = None if result is None else _operand_in(result, inputs)
            if operand is not None:
                raise TypeError(f"{self.spec} returned {name} in the memory of the operand {operand}")
        return output, lse

    @property
    def tells_variants(self) -> bool:
        return callable(getattr(self.function, "variant", None))

    def variant(self, inputs: Inputs, row: int) -> str:
        """See `Target.variant`. Raises TypeError where what the function tells is no short name."""
        tell = getattr(self.function, "variant", None)
        if not callable(tell):
            return ""
        name = tell(**inputs.operands(), row=row)
        if not isinstance(name, str) or not _VARIANT.fullmatch(name):
            raise TypeError(f"{self.spec} tells the variant {name!r}: a name is up to 32 of a-z, 0-9, '_', '.' and '-'")
        return name

    def _call(
        self, inputs: Inputs, output: torch.Tensor | None, lse: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not self.destination_passing:
            return self._results(self.function(**inputs.operands()))
        if output is None:
            output = torch.empty(inputs.q_nope.shape, dtype=inputs.q_nope.dtype, device=inputs.device)
        if not self.takes_lse:
            returned = self.function(**inputs.operands(), output=output)
            return (output, None) if returned is None else self._results(returned)
        if lse is None:
            lse = torch.empty((inputs.total_q, NUM_HEADS), dtype=torch.float32, device=inputs.device)
        returned = self.function(**inputs.operands(), output=output, lse=lse)
        return (output, lse) if returned is None else self._results(returned)

    def _results(self, returned: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        if isinstance(returned, Mapping):
            if "output" not in returned:
                raise TypeError(f"{self.spec} returned a dict without 'output'; it has {sorted(returned)}")
            returned = (returned["output"], returned.get("lse"))
        elif isinstance(returned, torch.Tensor):
            returned = (returned, None)
        elif not isinstance(returned, Sequence) or len(returned) not in (1, 2):
            raise TypeError(f"{self.spec} returned {_described(returned)}, not output, (output, lse) or a dict of them")
        output, lse = (*returned, None)[:2]
        for name, result in (("output", output), ("lse", lse)):
            if not isinstance(result, torch.Tensor) and not (result is None and name == "lse"):
                raise TypeError(f"{self.spec} returned {_described(result)} as {name}, not a tensor")
        return output, lse


class Wrapped:
    """A target in another one, which does more around each call and is else like it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.spec, self.destination_passing, self.profile = target.spec, target.destination_passing, target.profile

    def variant(self, inputs: Inputs, row: int) -> str:
        return self.target.variant(inputs, row)


class OutputAlone(Wrapped):
    """A target whose lse is none of anyone's business: it is dropped, whether there is one or not."""

    def __call__(
        self, inputs: Inputs, output: torch.Tensor | None = None, lse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, None]:
        return self.target(inputs, output, lse)[0], None


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
        raise UsageError(f"--kernel {spec}: {name!r} is {_described(function)}, not a function")
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


def _operand_in(result: torch.Tensor, inputs: Inputs) -> str | None:
    """The operand whose storage a result is a view of."""
    if not result.numel() or result.layout is not torch.strided:
        return None
    place = result.untyped_storage().data_ptr()
    for name, operand in inputs.operands().items():
        if isinstance(operand, torch.Tensor) and operand.untyped_storage().data_ptr() == place:
            return name
    return None


def _last_words(error: BaseException) -> str:
    """An exception in one line, with the place in the user's file where it is a syntax error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    return " ".join(f"{type(error).__name__}: {error}".split())


def _described(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
