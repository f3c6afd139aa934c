"""The kernel without what one architecture alone can run: `kernel.portable.run` is `kernel.run` without Hopper's plan.

It is what other GPUs run, and the interpreter. On Hopper it can be judged and timed beside `kernel.run`.
"""

import functools

import torch

from . import host
from .contract import Inputs
from .paths import path_of
from .plan import plan_portable


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
    """As `kernel.run`."""
    inputs = Inputs(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale)
    return host.call(inputs, output, lse, plan_portable)


run.variant = functools.partial(path_of, plan_for=plan_portable)  # type: ignore[attr-defined]  # functions have attributes
