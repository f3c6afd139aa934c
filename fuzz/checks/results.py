"""One call of the kernel under test on result memory that is poisoned, so that what it does not write shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz import guards
from fuzz.target import Target
from kernel.contract import NUM_HEADS, Inputs

# Signaling NaNs: no arithmetic gives one back, so a computed NaN is never mistaken for memory that was not written.
_POISON = {torch.bfloat16: 0x7FB7, torch.float16: 0x7DB7, torch.float32: 0x7FB77FB7}
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Results:
    """What a call gave: `output` and `lse` as the kernel under test returned them, and the buffers offered to it.

    The lse is None where the contract asks for none.
    """

    output: torch.Tensor
    lse: torch.Tensor | None
    buffers: tuple[torch.Tensor, ...]

    def named(self) -> dict[str, torch.Tensor]:
        """The results that there are, by name."""
        return {"output": self.output} if self.lse is None else {"output": self.output, "lse": self.lse}

    def on(self, device: torch.device) -> Results:
        """The results on a device, without buffers if that is another one."""
        if self.output.device == device:
            return self
        return Results(self.output.to(device), None if self.lse is None else self.lse.to(device), ())

    def rows(self, part: slice) -> Results:
        """The results of some rows."""
        return Results(self.output[part], None if self.lse is None else self.lse[part], ())


class KernelRaised(Exception):
    """The kernel under test raised an exception, or the GPU reported one while it ran."""


def call(target: Target, inputs: Inputs) -> Results:
    """Run the target and wait for it. Raises KernelRaised from whatever it raises.

    A destination-passing target gets guarded buffers; of any other, the memory that it takes through torch is poisoned.
    """
    try:
        return _call(target, inputs)
    except Exception as error:
        raise KernelRaised(f"{type(error).__name__}: {error}") from error


def call_captured(target: Target, inputs: Inputs, graph: torch.cuda.CUDAGraph) -> Results:
    """Capture the call in `graph`; the results hold the poison until it is replayed. Raises KernelRaised."""
    buffers = _buffers(inputs) if target.destination_passing else ()
    try:
        with torch.cuda.graph(graph):
            return Results(*target(inputs, *buffers), buffers)
    except Exception as error:
        raise KernelRaised(f"in a CUDA graph: {type(error).__name__}: {error}") from error


def _call(target: Target, inputs: Inputs) -> Results:
    if target.destination_passing:
        buffers = _buffers(inputs)
        results = Results(*target(inputs, *buffers), buffers)
    else:
        with _PoisonedAllocations():
            results = Results(*target(inputs), ())
    if inputs.device.type == "cuda":
        torch.cuda.synchronize(inputs.device)
    return results


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers, so that NaN equals itself and -0 differs from +0."""
    return tensor.view(_BITS[tensor.itemsize])


def unwritten(tensor: torch.Tensor) -> torch.Tensor:
    """Where a result still holds the poison, bool of its shape."""
    pattern = _POISON.get(tensor.dtype)
    return torch.zeros_like(tensor, dtype=torch.bool) if pattern is None else bits(tensor) == pattern


def _buffers(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (inputs.total_q, NUM_HEADS, inputs.q_nope.shape[-1])
    output = _poisoned(shape, inputs.q_nope.dtype, inputs.device)
    return output, _poisoned(shape[:2], torch.float32, inputs.device)


def _poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    buffer = guards.allocate(shape, dtype, device)
    bits(buffer).fill_(_POISON[dtype])
    return buffer


class _PoisonedAllocations(TorchDispatchMode):
    """Fills what torch.empty and its like return, also for code that calls them deep inside the kernel under test."""

    _EMPTY = frozenset(
        {
            torch.ops.aten.empty.memory_format,
            torch.ops.aten.empty_strided.default,
            torch.ops.aten.empty_like.default,
            torch.ops.aten.new_empty.default,
            torch.ops.aten.new_empty_strided.default,
        }
    )

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if function in self._EMPTY and made.dtype in _POISON and made.device.type != "meta":
            bits(made).fill_(_POISON[made.dtype])
        return made
