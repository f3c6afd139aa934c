"""The kernel under test, ours or anyone's, behind one calling convention."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch

from kernel.contract import NUM_HEADS, Inputs
from reference.profile import DEFAULT_PROFILE, Profile

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
            raise TypeError(f"{self.spec} returned {described(returned)}, not output, (output, lse) or a dict of them")
        output, lse = (*returned, None)[:2]
        for name, result in (("output", output), ("lse", lse)):
            if not isinstance(result, torch.Tensor) and not (result is None and name == "lse"):
                raise TypeError(f"{self.spec} returned {described(result)} as {name}, not a tensor")
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


def _operand_in(result: torch.Tensor, inputs: Inputs) -> str | None:
    """The operand whose storage a result is a view of."""
    if not result.numel() or result.layout is not torch.strided:
        return None
    place = result.untyped_storage().data_ptr()
    for name, operand in inputs.operands().items():
        if isinstance(operand, torch.Tensor) and operand.untyped_storage().data_ptr() == place:
            return name
    return None


def described(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
