"""What the kernel under test did to memory: every result element written, nothing else touched."""

from collections.abc import Mapping
from types import EllipsisType

import torch

from fuzz import guards
from fuzz.checks.finding import Finding
from fuzz.checks.results import Results, bits, unwritten
from fuzz.checks.storage import storages_of, tensors
from kernel.contract import Inputs

_COPY_LIMIT = 1 << 28  # bytes, of all storages together or of one operand, up to which a copy is kept


class Snapshot:
    """The operands as they were before a call.

    Their storages, guard bands and all; or, of huge ones, all of each operand or a sample: of a cache the pages that
    live slots name, of others every n-th row.
    """

    def __init__(self, inputs: Inputs) -> None:
        operands = tensors(inputs)
        self._contents: torch.Tensor | None = None
        self._kept: dict[str, EllipsisType | slice | torch.Tensor] = dict.fromkeys(operands, ...)
        if sum(storage.nbytes() for storage in storages_of(operands.values())) <= _COPY_LIMIT:
            self._contents = torch.cat(_contents(operands))
            self._held = _views_of(self._contents, operands)
        else:
            self._kept = {name: _kept(name, tensor, inputs) for name, tensor in operands.items()}
            self._held = {name: tensor[self._kept[name]].clone() for name, tensor in operands.items()}

    def holds(self, inputs: Inputs) -> bool:
        """Whether not a byte has changed in or around any operand, as far as one comparison tells."""
        if self._contents is None:
            return False
        contents = _contents(tensors(inputs))
        held = self._contents.split([len(each) for each in contents])
        if self._contents.device.type == "cpu":
            return all(map(torch.equal, held, contents))
        return torch.equal(self._contents, torch.cat(contents))  # a GPU is waited for once

    def changed(self, inputs: Inputs) -> Finding | None:
        """The first operand that holds something else now."""
        parts = {name: tensor[self._kept[name]] for name, tensor in tensors(inputs).items()}
        changes = {name: bits(part) ^ bits(self._held[name]) for name, part in parts.items()}
        name, count = _first_with_any(changes)
        if not count:
            return None
        where = _first(changes[name])
        return Finding(
            "inputs-untouched",
            f"{name} was changed by the call ({count} of {changes[name].numel()} elements)",
            where if self._kept[name] is ... else None,
            parts[name][where].item(),
            self._held[name][where].item(),
        )


def check_written(results: Results) -> Finding | None:
    missed = {name: unwritten(tensor) for name, tensor in results.named().items()}
    name, count = _first_with_any(missed)
    if not count:
        return None
    detail = f"{count} of {missed[name].numel()} elements of {name} were not written"
    return Finding("written", detail, _first(missed[name]))


def check_bounds(operands: Mapping[str, torch.Tensor], results: Results) -> Finding | None:
    """Whether the guard bands of some operands and of the result buffers are as they were made."""
    storages: dict[int, dict[str, torch.Tensor]] = {}
    named = dict(operands) | dict(zip(("output", "lse"), results.buffers, strict=False))
    for name, tensor in named.items():
        storages.setdefault(tensor.untyped_storage().data_ptr(), {})[name] = tensor
    if not storages:
        return None
    # all of them are asked for at once, so that a GPU is waited for once
    intact = torch.stack([guards.intact(*views.values()) for views in storages.values()]).tolist()
    for whole, views in zip(intact, storages.values(), strict=True):
        if not whole:
            return Finding("in-bounds", f"memory around {' and '.join(views)} was written")
    return None


def _contents(operands: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """What the storages of the operands hold, int64."""
    storages = storages_of(operands.values())
    return [torch.empty(0, dtype=torch.int64, device=each.device).set_(each) for each in storages]


def _views_of(contents: torch.Tensor, operands: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The operands as they are in such contents, one after the other."""
    starts, start = {}, 0
    for storage in storages_of(operands.values()):
        starts[storage.data_ptr()] = start
        start += storage.nbytes()
    return {
        name: contents.view(tensor.dtype).as_strided(
            tensor.shape,
            tensor.stride(),
            starts[tensor.untyped_storage().data_ptr()] // tensor.itemsize + tensor.storage_offset(),
        )
        for name, tensor in operands.items()
    }


def _kept(name: str, tensor: torch.Tensor, inputs: Inputs) -> EllipsisType | slice | torch.Tensor:
    """The index of what is kept of an operand."""
    parts = -(-tensor.numel() * tensor.itemsize // _COPY_LIMIT)
    if parts <= 1:
        return ...
    return _named_pages(inputs) if name in ("ckv_cache", "kpe_cache") else slice(None, None, parts)


def _named_pages(inputs: Inputs) -> torch.Tensor:
    pages = inputs.kv_indices.long()
    named: torch.Tensor = pages[(pages >= 0) & (pages < inputs.num_pages)].unique()
    return named


def _first_with_any(flags: dict[str, torch.Tensor]) -> tuple[str, int]:
    """The name of the first tensor with elements that are not zero, and how many; ("", 0) if there is none. A GPU is
    waited for once."""
    counts = torch.stack([tensor.count_nonzero() for tensor in flags.values()]).tolist()
    return next((each for each in zip(flags, counts, strict=True) if each[1]), ("", 0))


def _first(flags: torch.Tensor) -> tuple[int, ...]:
    return tuple(flags.nonzero()[0].tolist())
