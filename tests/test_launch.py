"""Launches: on the device of the operands, compiled once per variant. Shown on devices that are not there."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from kernel import host, launch
from kernel.contract import Inputs
from kernel.plan import plan_emulated, plan_on
from tests.reference_inputs import make_inputs

STREAM = 7


@pytest.fixture
def current(monkeypatch) -> list[int]:
    """The stack of current devices, the last of which counts."""
    devices = [0]

    @contextmanager
    def device(one: torch.device):
        devices.append(one.index)
        yield
        devices.pop()

    monkeypatch.setattr(torch.cuda, "current_device", lambda: devices[-1])
    monkeypatch.setattr(torch.cuda, "device", device)
    driver = SimpleNamespace(active=SimpleNamespace(get_current_stream=lambda index: STREAM + index))
    monkeypatch.setattr(launch, "driver", driver)
    monkeypatch.setattr(launch, "_compiled", {})
    return devices


class Kernel:
    """Records which device was current when it was compiled and launched, and with what."""

    def __init__(self, current: list[int]) -> None:
        self.compiled: list[int] = []
        self.launched: list[tuple] = []
        self._current = current

    def warmup(self, *arguments, grid, **options):
        self.compiled.append(self._current[-1])
        run = lambda *given: self.launched.append((self._current[-1], *given))  # noqa: E731
        return SimpleNamespace(run=run, function="function", packed_metadata="metadata")


def launched(kernel: Kernel, device: int, variant: tuple = ()) -> tuple:
    tensor = torch.zeros(3)
    launch.launch(kernel, 5, torch.device("cuda", device), variant, (tensor,), (1, 2.0), {"A": 3}, {"num_warps": 4})
    current, *given = kernel.launched[-1]
    grid = (5, 1, 1)
    assert given == [*grid, STREAM + device, "function", "metadata", None, None, None, tensor.data_ptr(), 1, 2.0, 3]
    return current


def test_the_device_of_the_operands_is_current_while_a_kernel_is_compiled_and_launched(current):
    kernel = Kernel(current)
    assert [launched(kernel, 0), launched(kernel, 1)] == [0, 1]
    assert kernel.compiled == [0, 1]
    assert current == [0]


def test_a_variant_is_compiled_once_per_device(current):
    kernel = Kernel(current)
    for variant in ("a", "b", "a"):
        for device in (0, 1, 0):
            launched(kernel, device, (variant,))
    assert kernel.compiled == [0, 1, 0, 1]


def test_two_plans_of_a_device_are_variants_of_a_kernel(monkeypatch):
    """A kernel that was compiled for one of them would leave rows to others which that one has launched."""
    variants = []
    monkeypatch.setattr(host, "launch", lambda kernel, programs, device, variant, *given: variants.append(variant))
    inputs = Inputs(**make_inputs([(1, 3)]).operands())
    for plan_for in (plan_on, plan_emulated):
        host._launch(inputs, 1.0, torch.empty(1, 16, 512), torch.empty(1, 16), plan_for)
    assert len(set(variants)) == len(variants) == 2
