"""One call of the kernel under test on result memory that is poisoned, so that what it does not write shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.case import Case
from fuzz.checks.finding import Finding
from fuzz.strata.layouts import LAYOUTS, allocate_results
from fuzz.target import Target
from kernel.contract import Inputs

# Signaling NaNs: no arithmetic gives one back, so a computed NaN is never mistaken for memory that was not written.
_POISON = {torch.bfloat16: 0x7FB7, torch.float16: 0x7DB7, torch.float32: 0x7FB77FB7}
# Large numbers, for memory that is no result: they show where a NaN is due, and where a maximum passes over NaN.
_DECOY = {torch.bfloat16: 0x7171, torch.float16: 0x7171, torch.float32: 0x71717171}
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

    def rows(self, part: slice | torch.Tensor) -> Results:
        """The results of some rows."""
        return Results(self.output[part], None if self.lse is None else self.lse[part], ())


class KernelRaised(Exception):
    """The kernel under test raised an exception, or the GPU reported one while it ran, or, in a sandbox, it did
    something else after which its process cannot be used.

    cause    in a word or two, the same for all calls that go wrong in that way: buckets are split by it
    printed  the last lines that its process printed
    """

    def __init__(self, cause: str, text: str, printed: str = "") -> None:
        super().__init__(text)
        self.cause, self.printed = cause, printed

    @classmethod
    def of(cls, error: BaseException, where: str = "") -> KernelRaised:
        """From an exception that the kernel let out."""
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
            return cls(f"exit-{status}", f"{where}SystemExit: {error}")
        text = f"{type(error).__name__}: {error}"[:_LONGEST]
        is_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or _NO_MEMORY.search(text)
        return cls("memory" if is_memory else type(error).__name__, where + text)

    def finding(self) -> Finding:
        """What the check `alive` says of it."""
        return Finding("alive", str(self), cause=self.cause, printed=self.printed)


_LONGEST = 2000  # characters of an exception that are kept
_NO_MEMORY = re.compile("can't allocate memory|[Cc]annot allocate memory|not enough memory|out of memory|bad_alloc")


def call(
    target: Target, inputs: Inputs, case: Case | None, buffers: tuple[torch.Tensor, ...] | None = None
) -> Results:
    """Run the target and wait for it. Raises KernelRaised from whatever it raises.

    A destination-passing target gets `buffers`, or new ones. Memory that any target takes through torch is poisoned.
    """
    if buffers is None:
        buffers = result_buffers(target, inputs, case)
    try:
        return Results(*run(target, inputs, buffers), buffers)
    except KernelRaised:
        raise
    except Exception as error:
        raise KernelRaised.of(error) from error


def call_captured(target: Target, inputs: Inputs, case: Case | None, graph: torch.cuda.CUDAGraph) -> Results:
    """Capture the call in `graph`; the results hold the poison until it is replayed. Raises KernelRaised."""
    buffers = result_buffers(target, inputs, case)
    try:
        with torch.cuda.graph(graph):
            return Results(*target(inputs, *buffers), buffers)
    except Exception as error:
        raise KernelRaised.of(error, "in a CUDA graph: ") from error


def run(
    target: Target, inputs: Inputs, buffers: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What the target returns, when the GPU has finished. It is offered `buffers`, which hold the poison already, and
    its own allocations are poisoned: as results where it is offered none, as scratch otherwise."""
    with _PoisonedAllocations(scratch=bool(buffers)):
        results = target(inputs, *buffers)
    if inputs.device.type == "cuda":
        torch.cuda.synchronize(inputs.device)
    return results


def warm_up() -> None:
    """Have torch import what poisoning allocations takes; that is a second."""
    with _PoisonedAllocations(scratch=False):
        torch.empty(0)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as integers, so that NaN equals itself and -0 differs from +0."""
    return tensor.view(_BITS[tensor.itemsize])


def unwritten(tensor: torch.Tensor) -> torch.Tensor:
    """Where a result still holds the poison, bool of its shape."""
    pattern = _POISON.get(tensor.dtype)
    return torch.zeros_like(tensor, dtype=torch.bool) if pattern is None else bits(tensor) == pattern


def result_buffers(target: Target, inputs: Inputs, case: Case | None) -> tuple[torch.Tensor, ...]:
    """Guarded, poisoned memory for the results of a destination-passing target, placed as the layout of `case` says,
    contiguous where the operands are no case's. None for others.
    """
    if not target.destination_passing:
        return ()
    layout, seed = (LAYOUTS["contiguous"], 0) if case is None else (LAYOUTS[case.layout], case.seed)
    made = allocate_results(layout, inputs.total_q, inputs.q_nope.dtype, inputs.device, seed)
    return tuple(map(_poisoned, made))


def _poisoned(buffer: torch.Tensor) -> torch.Tensor:
    bits(buffer).fill_(_POISON[buffer.dtype])
    return buffer


class _PoisonedAllocations(TorchDispatchMode):
    """Fills what torch.empty and its like return, also for code that calls them deep inside the kernel under test.

    Results hold the poison everywhere, scratch by turns: two elements of it, two large numbers.
    """

    _EMPTY = frozenset(
        {
            torch.ops.aten.empty.memory_format,
            torch.ops.aten.empty_strided.default,
            torch.ops.aten.empty_like.default,
            torch.ops.aten.new_empty.default,
            torch.ops.aten.new_empty_strided.default,
        }
    )

    def __init__(self, *, scratch: bool) -> None:
        TorchDispatchMode.__init__(self)
        self._scratch = scratch

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Without this, torch.compile does not compile where a mode is active, and another kernel would be judged."""
        return True

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if function in self._EMPTY and made.dtype in _POISON and made.device.type != "meta":
            bits(made).fill_(_POISON[made.dtype])
            if self._scratch:
                _spoil(made)
        return _without_gaps(made) if isinstance(made, list) else made


def _without_gaps(tensors: list[torch.Tensor | None]) -> list[torch.Tensor]:
    """A list of results that torch lets out of a mode: it knows no None there, which is what an operator's undefined
    results have become, as those that FlashAttention-3 gives in place of the parts of a context that is not split."""
    return [torch.empty(0) if tensor is None else tensor for tensor in tensors]


def _spoil(tensor: torch.Tensor) -> None:
    """Put large numbers in two of every four elements of fresh memory."""
    elements = torch.empty(0, dtype=_BITS[tensor.itemsize], device=tensor.device).set_(tensor.untyped_storage())
    for first in (2, 3):
        elements[first::4] = _DECOY[tensor.dtype]
