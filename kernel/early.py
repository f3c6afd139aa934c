"""Launches that begin early, as the device sees them: it waits for the launch before, and lets the next one begin.

Apart from launch.py, which is the host's: what a kernel is compiled from changes with this file alone.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


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
