"""Launches with little host time.

Triton's own launch binds, inspects and hashes every argument again at each call: 50 to 100 us for forty of them. Here
nothing is specialised on a value, so the caller knows what decides the variant, and the compiled kernel is called.
"""

from collections.abc import Hashable
from typing import Any

import torch
import triton

_compiled: dict[tuple[Hashable, ...], Any] = {}


def launch(
    kernel: Any,
    programs: int,
    device: torch.device,
    variant: tuple[Hashable, ...],
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    options: dict[str, int],
) -> None:
    """Launch `programs` programs of a triton.jit function on the current stream of `device`.

    `kernel` is specialised on no argument; `constants` are its tl.constexpr parameters, which come last in its
    signature and in this order; `options` are the compiler's. `variant` must differ where the dtypes of `arguments`,
    the constants or the options do: then the kernel is compiled.
    """
    if device.type == "cpu":
        kernel[(programs,)](*arguments, **constants)
    elif device.index == torch.cuda.current_device():
        _launch_here(kernel, programs, (id(kernel), device.index, *variant), arguments, constants, options)
    else:
        with torch.cuda.device(device):
            _launch_here(kernel, programs, (id(kernel), device.index, *variant), arguments, constants, options)


def _launch_here(
    kernel: Any,
    programs: int,
    variant: tuple[Hashable, ...],
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    options: dict[str, int],
) -> None:
    compiled = _compiled.get(variant)
    if compiled is None:
        compiled = kernel.warmup(*arguments, **constants, grid=(programs,), **options)
        _compiled[variant] = compiled
    compiled[(programs, 1, 1)](*arguments, *constants.values())


def is_interpreted(kernel: Any) -> bool:
    """Whether Triton was imported with its CPU interpreter on."""
    return not isinstance(kernel, triton.JITFunction)
