"""Cases that are judged on the CPU although the kernel runs on a GPU.

The many small operations of a verdict on a small case cost a core less than they cost a GPU that other workers share.
"""

from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fuzz.case import Case, is_sparse
from fuzz.checks.storage import copies, copy_of, take_over, tensors, wait_for
from fuzz.target import Target
from kernel.contract import Inputs
from reference.profile import Profile

# One core judges a case of so many tiles in some 50 ms. On an H200 that 15 workers shared, a verdict took 160 ms where
# one worker alone took 47; the threshold itself was not tuned.
_TILES = 64


def home_of(case: Case, device: torch.device) -> torch.device:
    """Where the operands of a case are built and its results judged."""
    return torch.device("cpu") if case.tiles <= _TILES and not is_sparse(case) else device


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A target that takes CPU tensors and runs on `device`, on copies of all storages, which come back afterwards."""

    target: Target
    device: torch.device

    @property
    def destination_passing(self) -> bool:
        return self.target.destination_passing

    @property
    def profile(self) -> Profile:
        return self.target.profile

    def __call__(
        self, inputs: Inputs, output: torch.Tensor | None = None, lse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        offered = [buffer for buffer in (output, lse) if buffer is not None]
        with _disable_current_modes():  # that which poisons the kernel's allocations would see every copy
            given = copy_of(inputs, self.device)
            buffers = copies(*offered, device=self.device)
            wait_for([self.device])  # a kernel that runs on a stream of its own finds its operands, too
        results = self.target(given, *buffers)
        with _disable_current_modes():
            wait_for([self.device])
            take_over([*tensors(inputs).values(), *offered], [*tensors(given).values(), *buffers])
        back = {id(there): here for here, there in zip(offered, buffers, strict=True)}
        output, lse = (back.get(id(result), result if result is None else result.cpu()) for result in results)
        return output, lse
