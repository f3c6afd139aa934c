"""Kernels under test in a process of their own, so that a crash, a hang or an exit is a failure of one case.

    worker (outside)  --spawns-->  nursery  --forks-->  child (inside)
       |   messages over a socket, operands and results in shared memory   |
       +-------------------------------------------------------------------+

The judge sits outside, where the kernel cannot touch it, except for cases that are judged on a GPU and for checks that
need its streams, graphs or current device: those the child judges itself. docs/sandbox.md has more.
"""

from fuzz.loading import load
from fuzz.options import DEFAULT_KERNEL
from fuzz.sandbox.outside import Sandbox
from fuzz.target import Target

__all__ = ["Sandbox", "open_kernel"]


def open_kernel(spec: str, profile: str, device: str, when: str = "auto") -> Target | Sandbox:
    """The kernel that `spec` names (`fuzz.loading.load`), in a sandbox or in this process.

    when  always, never, or auto: all kernels but our own

    Raises:
        UsageError: it cannot be loaded.
    """
    if when == "always" or (when == "auto" and spec != DEFAULT_KERNEL):
        return Sandbox(spec, profile, device)
    return load(spec, profile)
