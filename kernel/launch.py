"""Launches with little host time.

Triton's own launch binds, inspects and hashes every argument again at each call: 50 to 100 us for forty of them. Here
nothing is specialised on a value, so the caller knows what decides the variant, and the compiled kernel is called, with
addresses in place of tensors, about each of which it would ask the driver.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import triton
from triton import knobs
from triton.runtime import driver

_compiled: dict[tuple[Hashable, ...], Any] = {}


def launch(
    kernel: Any,
    programs: int,
    device: torch.device,
    variant: tuple[Hashable, ...],
    tensors: Sequence[torch.Tensor],
    numbers: Sequence[int | float],
    constants: dict[str, Any],
    options: dict[str, int],
) -> None:
    """Launch `programs` programs of a triton.jit function on the current stream of `device`.

    `kernel` takes tensors, then numbers, and is specialised on none of them; `constants` are its tl.constexpr
    parameters, which come last in its signature and in this order; `options` are the compiler's. `variant` must differ
    where the dtypes of `tensors`, the constants or the options do: then the kernel is compiled.
    """
    if device.type == "cpu":
        _on_cpu(kernel)[(programs,)](*tensors, *numbers, **constants)
        return
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(kernel, programs, device, variant, tensors, numbers, constants, options)
        return
    key = (id(kernel), device.index, variant)
    compiled = _compiled.get(key)
    if compiled is None:
        compiled = kernel.warmup(*tensors, *numbers, **constants, grid=(programs,), **options)
        _compiled[key] = compiled
    if knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls:
        # A profiler listens.
        compiled[(programs, 1, 1)](*tensors, *numbers, *constants.values())
        return
    stream = driver.active.get_current_stream(device.index)
    compiled.run(
        programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None,
        *map(torch.Tensor.data_ptr, tensors), *numbers, *constants.values(),
    )  # fmt: skip


def _on_cpu(kernel: Any) -> Any:
    """The interpreted kernel: Triton makes one of each kernel of its own, and none of Gluon's."""
    if is_interpreted(kernel):
        return kernel
    from .gluon_interpreter import interpreted

    return interpreted(kernel)


def is_interpreted(kernel: Any) -> bool:
    """Whether Triton was imported with its CPU interpreter on."""
    return not isinstance(kernel, triton.JITFunction)
