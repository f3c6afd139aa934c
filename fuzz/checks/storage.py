"""Operands together with the storages that they are views of: copies, also to another device and back."""

from collections.abc import Iterable, Sequence

import torch

from kernel.contract import Inputs


def tensors(inputs: Inputs) -> dict[str, torch.Tensor]:
    """The operands that are tensors, by name."""
    return {name: value for name, value in inputs.operands().items() if isinstance(value, torch.Tensor)}


def storages_of(views: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """The storages that views have, each once."""
    return list({view.untyped_storage().data_ptr(): view.untyped_storage() for view in views}.values())


def copy_of(inputs: Inputs, device: torch.device | None = None) -> Inputs:
    """Inputs of the same layout in storages of their own, on `device` or where they are."""
    names = tensors(inputs)
    copied = dict(zip(names, copies(*names.values(), device=device), strict=True))
    return Inputs(**copied, sm_scale=inputs.sm_scale)


def copies(*views: torch.Tensor, device: torch.device | None = None) -> list[torch.Tensor]:
    """The same views of copies of their storages; views of one storage share its copy."""
    made: dict[int, torch.UntypedStorage] = {}
    result = []
    for view in views:
        storage = view.untyped_storage()
        if storage.data_ptr() not in made:
            made[storage.data_ptr()] = _copied(whole(view), device or view.device).untyped_storage()
        place = torch.empty(0, dtype=view.dtype, device=device or view.device)
        result.append(place.set_(made[storage.data_ptr()], view.storage_offset(), view.shape, view.stride()))
    return result


def take_over(views: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
    """Give the storages of `views` the bytes that the storages of `others`, copies of them, hold now."""
    contents = {}
    for view, other in zip(views, others, strict=True):
        if other.untyped_storage().data_ptr() not in contents:
            contents[other.untyped_storage().data_ptr()] = whole(view), _near(whole(other), view.device)
    wait_for({other.device for other in others})
    for own, content in contents.values():
        own.copy_(content)


def wait_for(devices: Iterable[torch.device]) -> None:
    """Wait until the GPUs among some devices have finished."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _copied(content: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on a device. What goes to a GPU is under way in pinned memory, in the order of the current stream: each of
    many workers waits for its turn on the GPU once, not once for every operand."""
    if content.device.type == "cpu" and device.type == "cuda":
        return content.pin_memory().to(device, non_blocking=True)
    return content.to(device, copy=True)


def _near(content: torch.Tensor, device: torch.device) -> torch.Tensor:
    """What a storage holds, where `device` can read it, once its own device has been waited for."""
    if content.device.type == "cuda" and device.type == "cpu":
        return torch.empty(content.shape, dtype=content.dtype, pin_memory=True).copy_(content, non_blocking=True)
    return content


def whole(view: torch.Tensor) -> torch.Tensor:
    """Everything that a view's storage holds, uint8."""
    return torch.empty(0, dtype=torch.uint8, device=view.device).set_(view.untyped_storage())
