"""Launches with little host time.

Triton's own launch binds, inspects and hashes every argument again at each call: 50 to 100 us for forty of them. Here
nothing is specialised on a value, so the caller knows what decides the variant, and the compiled kernel is called, with
addresses in place of tensors, about each of which it would ask the driver.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
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


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def wait_for_launch(WAIT: tl.constexpr) -> None:
    """Wait until the launch before has ended; every program of a kernel that is launched early does so, most at once.

    Programmatic dependent launch: the GPU starts a kernel while the last programs of the one before are at work, which
    takes a microsecond off each launch. As all kernels wait for the one before, the last one of a call ends last.
    """
    if WAIT:
        gdc_wait()


@triton.jit  # type: ignore[untyped-decorator]
def let_next_begin(EARLY: tl.constexpr) -> None:
    """Let the next launch begin where there is room, and wait there for the end of this one, or not wait yet."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit  # type: ignore[untyped-decorator]
def fetch(pointers, EARLY: tl.constexpr):  # type: ignore[no-untyped-def]  # an annotation would be read by Triton
    """Begin to bring what `pointers` point to into the GPU's cache: who loads it later waits less.

    EARLY  on a GPU where launches may begin early; measured on an H200
    """
    if EARLY:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [pointers.to(tl.int64, bitcast=True)],
            dtype=tl.int32, is_pure=False, pack=1,
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
