"""What the kernel under test did to memory: every result element written, nothing else touched."""

import torch

from fuzz import guards
from fuzz.checks.finding import Finding
from fuzz.checks.results import Results, bits, unwritten
from fuzz.checks.storage import tensors
from kernel.contract import Inputs

_COPY_LIMIT = 1 << 28  # bytes of an operand up to which a copy of all of it is kept


class Snapshot:
    """The operands as they were before a call.

    All of each or, of a huge one, a sample: of a cache the pages that live slots name, of others every n-th row.
    """

    def __init__(self, inputs: Inputs) -> None:
        self._live = _named_pages(inputs)
        self._held = {name: self._part(name, tensor).clone() for name, tensor in tensors(inputs).items()}

    def changed(self, inputs: Inputs) -> Finding | None:
        """The first operand that holds something else now."""
        for name, tensor in tensors(inputs).items():
            part = self._part(name, tensor)
            different = bits(part) != bits(self._held[name])
            if different.any():
                where = _first(different)
                return Finding(
                    "inputs-untouched",
                    f"{name} was changed by the call ({int(different.sum())} of {different.numel()} elements)",
                    where if part is tensor else None,
                    part[where].item(),
                    self._held[name][where].item(),
                )
        return None

    def _part(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        parts = -(-tensor.numel() * tensor.itemsize // _COPY_LIMIT)
        if parts <= 1:
            return tensor
        return tensor[self._live] if name in ("ckv_cache", "kpe_cache") else tensor[::parts]


def check_written(results: Results) -> Finding | None:
    for name, tensor in results.named().items():
        missed = unwritten(tensor)
        if missed.any():
            detail = f"{int(missed.sum())} of {missed.numel()} elements of {name} were not written"
            return Finding("written", detail, _first(missed))
    return None


def check_bounds(inputs: Inputs, results: Results) -> Finding | None:
    """Whether the guard bands of all operands and result buffers are as they were made."""
    storages: dict[int, dict[str, torch.Tensor]] = {}
    named = tensors(inputs) | dict(zip(("output", "lse"), results.buffers, strict=False))
    for name, tensor in named.items():
        storages.setdefault(tensor.untyped_storage().data_ptr(), {})[name] = tensor
    for views in storages.values():
        if not guards.intact(*views.values()):
            return Finding("in-bounds", f"memory around {' and '.join(views)} was written")
    return None


def _named_pages(inputs: Inputs) -> torch.Tensor:
    pages = inputs.kv_indices.long()
    return pages[(pages >= 0) & (pages < inputs.num_pages)].unique()


def _first(flags: torch.Tensor) -> tuple[int, ...]:
    return tuple(flags.nonzero()[0].tolist())
