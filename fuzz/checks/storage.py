"""Operands together with the storages that they are views of: copies, also to another device and back."""

from dataclasses import replace

import torch

from kernel.contract import Inputs


def tensors(inputs: Inputs) -> dict[str, torch.Tensor]:
    """The operands that are tensors, by name."""
    return {name: value for name, value in inputs.operands().items() if isinstance(value, torch.Tensor)}


def copy_of(inputs: Inputs, device: torch.device | None = None) -> Inputs:
    """Inputs of the same layout in storages of their own, on `device` or where they are."""
    names = tensors(inputs)
    return replace(inputs, **dict(zip(names, copies(*names.values(), device=device), strict=True)))


def copies(*views: torch.Tensor, device: torch.device | None = None) -> list[torch.Tensor]:
    """The same views of copies of their storages; views of one storage share its copy."""
    made: dict[int, torch.UntypedStorage] = {}
    result = []
    for view in views:
        storage = view.untyped_storage()
        if storage.data_ptr() not in made:
            made[storage.data_ptr()] = whole(view).to(device or view.device, copy=True).untyped_storage()
        place = torch.empty(0, dtype=view.dtype, device=device or view.device)
        result.append(place.set_(made[storage.data_ptr()], view.storage_offset(), view.shape, view.stride()))
    return result


def take_over(view: torch.Tensor, other: torch.Tensor) -> None:
    """Give the storage of `view` the bytes that the storage of `other`, a copy of it, holds now."""
    whole(view).copy_(whole(other))


def whole(view: torch.Tensor) -> torch.Tensor:
    """Everything that a view's storage holds, uint8."""
    return torch.empty(0, dtype=torch.uint8, device=view.device).set_(view.untyped_storage())
