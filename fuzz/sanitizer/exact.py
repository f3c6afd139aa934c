"""A kernel on a GPU whose tensors are allocations that hold their elements and nothing else, so that a tool which knows
allocations sees each access outside a tensor. The guard bands of `fuzz.guards` would hide all near ones from it."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fuzz import guards
from fuzz.checks.elsewhere import OnDevice, returned
from fuzz.checks.storage import tensors
from kernel.contract import Inputs

_ALIGNED = 256  # bytes: of an allocation; a tensor keeps its place relative to that


class Exact(OnDevice):
    """A target that takes CPU tensors and runs on `device`, on copies that end with their last element. What the
    elements hold afterwards comes back. Memory that the kernel takes is left uninitialised: initcheck looks there."""

    def __call__(
        self, inputs: Inputs, output: torch.Tensor | None = None, lse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        with _disable_current_modes():  # the judge's, which poisons that memory
            return self._call(inputs, [buffer for buffer in (output, lse) if buffer is not None])

    def _call(self, inputs: Inputs, offered: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
        named = tensors(inputs)
        here = [*named.values(), *offered]
        there = [exact_copy(view, self.device) for view in here]
        given = Inputs(**dict(zip(named, there, strict=False)), sm_scale=inputs.sm_scale)
        results = self.target(given, *there[len(named) :])
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for view, copied in zip(here, there, strict=True):
            elements(view).copy_(elements(copied))
        return returned(results, there, here)


def exact_copy(view: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The same view of an allocation that ends with its last element. Before its first one is as much as keeps its
    alignment, less than 256 bytes."""
    span = elements(view)
    lead = view.storage_offset() % (_ALIGNED // view.itemsize)
    place = torch.empty(lead + span.numel(), dtype=view.dtype, device=device)
    place[lead:].copy_(span)
    return place.as_strided(view.shape, view.stride(), lead)


def elements(view: torch.Tensor) -> torch.Tensor:
    """All of the storage from the first to the last element of a view, gaps included."""
    length = guards.extent(view.shape, view.stride()) if view.numel() else 0
    return view.as_strided((length,), (1,))
