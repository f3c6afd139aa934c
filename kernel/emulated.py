"""The kernel as compute capability 9.0 runs it, on a CPU: `kernel.emulated.run` is `kernel.run` with Hopper's plan.

Triton's interpreter runs the Gluon kernel from the source that the GPU's compiler gets, and checks how its warpgroups
share memory (gluon_interpreter.py).
"""

import functools

import torch

from . import host
from .contract import Inputs
from .paths import path_of
from .plan import plan_emulated


def run(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    ckv_cache: torch.Tensor,
    kpe_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
    *,
    output: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `kernel.run`, for CPU tensors alone.

    Raises:
        InterpreterError: of triton.runtime.errors, warpgroups leave something to chance.
        RuntimeError: Triton was imported without its interpreter.
    """
    if not host.INTERPRETED:
        raise RuntimeError("kernel.emulated runs in Triton's interpreter: set TRITON_INTERPRET=1 before the import")
    inputs = Inputs(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale)
    return host.call(inputs, output, lse, plan_emulated)


run.variant = functools.partial(path_of, plan_for=plan_emulated)  # type: ignore[attr-defined]  # functions have attributes
