import pytest
import torch

from fuzz.guards import BAND, LAZY, allocate, intact

LAYOUTS = {
    "contiguous": {},
    "offset": {"offset": 1},
    "padded": {"strides": (300, 90, 1)},
    "stepped": {"strides": (400, 128, 2)},
    "transposed": {"strides": (64, 320, 1)},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.int64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_writes_inside_leave_the_guards_intact_and_any_other_does_not(layout: str, dtype: torch.dtype) -> None:
    tensor = allocate((5, 3, 64), dtype, **LAYOUTS[layout])
    tensor.zero_()
    assert intact(tensor)
    every = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    first = tensor.storage_offset() * dtype.itemsize
    last = first + ((torch.tensor(tensor.shape) - 1) * torch.tensor(tensor.stride())).sum().item() * dtype.itemsize
    outside = [0, first - 1, last + dtype.itemsize, every.numel() - 1]
    if layout == "padded":
        outside.append(first + 64 * dtype.itemsize)
    for at in outside:
        before = every[at].item()
        every[at] = before ^ 1
        assert not intact(tensor)
        every[at] = before
    assert intact(tensor)


def test_views_of_one_buffer_are_judged_together() -> None:
    buffer = allocate((4, 2, 576), torch.bfloat16)
    nope, pe = buffer.split((512, 64), -1)
    nope.zero_()
    pe.zero_()
    assert intact(nope, pe)
    assert not intact(nope)


def test_the_pattern_is_nan_as_a_value_and_absurd_as_an_index() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert allocate((3,), dtype).isnan().all()
    for dtype in (torch.int32, torch.int64):
        assert (allocate((3,), dtype) > 1 << 30).all()


def test_bands_stand_on_both_sides_of_an_empty_tensor() -> None:
    tensor = allocate((0, 16, 512), torch.bfloat16)
    assert tensor.untyped_storage().nbytes() == 2 * BAND
    assert intact(tensor)


def test_huge_storage_is_zero_between_bands_and_takes_no_memory_until_touched() -> None:
    before = resident_bytes()
    tensor = allocate((1 << 23, 1, 512), torch.bfloat16, front=1 << 31)
    assert tensor.untyped_storage().nbytes() > 12 << 30 > LAZY
    tensor[-1] = 1.0
    assert tensor[1 << 22].abs().max() == 0
    assert intact(tensor)
    assert resident_bytes() - before < 16 << 20
    torch.empty(0, dtype=torch.int16).set_(tensor.untyped_storage())[-1] = 0
    assert not intact(tensor)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
