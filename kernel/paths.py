"""Which of the kernels computes a row: for those who look for a fault in one. No part of a call, as it waits for it."""

import torch

from .contract import Inputs
from .host import PlanFor, plan_of
from .plan import Plan, plan_on


def path_of(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    ckv_cache: torch.Tensor,
    kpe_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
    *,
    row: int,
    plan_for: PlanFor = plan_on,
) -> str:
    """What computes query row `row` of a call of `kernel.run` with these operands, results being contiguous; with
    another `plan_for`, of one that takes that plan:

        short                 requests of few keys, the padding
        lone, prefill, split  requests of one query, of more, and those whose chunks are merged
        hopper, hopper-split  the same in prefill_hopper.py

    Row pointers may hold anything; where they fall, it is the path that a request of such lengths takes.
    """
    inputs = Inputs(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale)
    plan, _ = plan_of(plan_for, inputs)
    rows, keys = qo_indptr.tolist(), kv_indptr.tolist()
    owners = [request for request in range(inputs.batch) if rows[request] <= row < rows[request + 1]]
    if not owners:
        return "short"
    q_len = rows[owners[-1] + 1] - rows[owners[-1]]
    kv_start, kv_len = keys[owners[-1]], max(0, keys[owners[-1] + 1] - keys[owners[-1]])
    exist = min(kv_len, max(0, inputs.num_kv_indices - kv_start)) if kv_start >= 0 and inputs.num_pages else 0
    if plan.is_short(q_len, exist):
        return "short"
    if plan.slots(inputs.num_kv_indices) and exist == kv_len > _chunk(plan, q_len, kv_len):
        return "hopper-split" if plan.listed else "split"
    if plan.listed:
        return "hopper"
    return "lone" if q_len == 1 else "prefill"


def _chunk(plan: Plan, q_len: int, kv_len: int) -> int:
    """Keys per chunk of a request that is split: `split_length` of split.py on the host."""
    if kv_len <= 8 * plan.chunk:
        return plan.chunk * q_len
    return 4 * plan.chunk * -(-q_len // plan.tile.queries)
