"""Cases that are judged on the CPU although the kernel runs on a GPU.

The many small operations of a verdict on a small case cost a core less than they cost a GPU that other workers share.
"""

from collections.abc import Sequence

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fuzz.case import Case, is_sparse
from fuzz.checks.storage import copies, copy_of, take_over, tensors, wait_for
from fuzz.target import Target, Wrapped
from kernel.contract import Inputs

# On an H200 that 15 workers shared, a verdict on the GPU took 160 ms where one worker alone took 47: it waits for the
# GPU some forty times. The threshold itself was not tuned.
_TILES = 64


def home_of(case: Case, device: torch.device) -> torch.device:
    """Where the operands of a case are built and its results judged."""
    return torch.device("cpu") if case.tiles <= _TILES and not is_sparse(case) else device


class OnDevice(Wrapped):
    """A target that takes CPU tensors and runs on `device`."""

    def __init__(self, target: Target, device: torch.device) -> None:
        super().__init__(target)
        self.device = device

    def variant(self, inputs: Inputs, row: int) -> str:
        return self.target.variant(copy_of(inputs, self.device), row)


class Elsewhere(OnDevice):
    """Such a target that is called with copies of all storages, which come back afterwards.

    in_order  it keeps to the current stream, as `stream-ordered` says, so that copies on that stream wait for it and it
              for them; one that need not is waited for before and after
    """

    def __init__(self, target: Target, device: torch.device, *, in_order: bool = False) -> None:
        super().__init__(target, device)
        self._in_order = in_order

    def __call__(
        self, inputs: Inputs, output: torch.Tensor | None = None, lse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        offered = [buffer for buffer in (output, lse) if buffer is not None]
        with _disable_current_modes():  # that which poisons the kernel's allocations would see every copy
            given = copy_of(inputs, self.device)
            buffers = copies(*offered, device=self.device)
            self._wait()
        results = self.target(given, *buffers)
        with _disable_current_modes():
            self._wait()
            take_over([*tensors(inputs).values(), *offered], [*tensors(given).values(), *buffers])
        return returned(results, buffers, offered)

    def _wait(self) -> None:
        if not self._in_order:
            wait_for([self.device])


def returned(
    results: tuple[torch.Tensor, torch.Tensor | None], there: Sequence[torch.Tensor], here: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What a call gave on the other device: of `there` those `here` that they are copies of, else a copy."""
    back = {id(copied): view for view, copied in zip(here, there, strict=True)}

    def home(result: torch.Tensor) -> torch.Tensor:
        return back[id(result)] if id(result) in back else result.cpu()

    return home(results[0]), None if results[1] is None else home(results[1])
