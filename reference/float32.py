"""A second reference, in float32, written independently of the golden one to cross-check it.

Same semantics, other means: one request after the other, keys sliced instead of masked where a mask could leak, torch's
own softmax and logsumexp in base e. TF32 is off while it runs.
"""

import itertools
import math

import torch
from torch import Tensor

from kernel.contract import CKV_DIM, NUM_HEADS, Inputs

from .precision import full_float32

# Memory budget: elements of one [rows, 16, keys] float32 temporary (64 MiB); a single row is never split.
SCORES = 2**24


def attention(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Output [total_q, 16, 512] and base-2 lse [total_q, 16], both float32, on the device of the inputs."""
    output = torch.zeros(inputs.total_q, NUM_HEADS, CKV_DIM, device=inputs.device)
    lse = torch.full((inputs.total_q, NUM_HEADS), -math.inf, device=inputs.device)
    starts = inputs.qo_indptr.clamp(0, inputs.total_q).cummax(0).values.tolist()
    qo_indptr, kv_indptr = inputs.qo_indptr.tolist(), inputs.kv_indptr.tolist()
    with full_float32():
        for b, (start, end) in enumerate(itertools.pairwise(starts)):
            shift = (kv_indptr[b + 1] - qo_indptr[b + 1]) - (kv_indptr[b] - qo_indptr[b])
            first_key, end_key = kv_indptr[b], kv_indptr[b + 1]
            visible = range(shift + start - qo_indptr[b] + 1, shift + end - qo_indptr[b] + 1)
            if end_key > first_key and len(visible) and visible[-1] > 0:
                _request(inputs, range(start, end), visible, first_key, output, lse)
    return output, lse


def _request(inputs: Inputs, rows: range, visible: range, first_key: int, output: Tensor, lse: Tensor) -> None:
    """Fill in the rows of one request; row rows[i] sees visible[i] keys, none where that is not positive."""
    in_bounds = max(0, min(visible[-1], inputs.num_kv_indices - first_key)) if first_key >= 0 else 0
    named = inputs.kv_indices[first_key : first_key + in_bounds].tolist() if in_bounds else []
    valid = next((j for j, page in enumerate(named) if not 0 <= page < inputs.num_pages), in_bounds)

    pages = torch.tensor(named[:valid], dtype=torch.int64, device=inputs.device)
    ckv, kpe = inputs.ckv_cache[pages, 0].float(), inputs.kpe_cache[pages, 0].float()
    # 0 * NaN: a mask protects a row from a later key only where that key is finite; else every row gets its own slice.
    finite = bool(ckv.isfinite().all()) and bool(kpe.isfinite().all())
    step = max(1, SCORES // (NUM_HEADS * max(1, valid))) if finite else 1

    start = max(0, 1 - visible[0])
    end = max(start, min(len(rows), valid - visible[0] + 1))
    for i in range(start, end, step):
        part = slice(i, min(i + step, end))
        chosen = slice(rows[part][0], rows[part][-1] + 1)
        counts = torch.tensor(visible[part], device=inputs.device)
        last = visible[part][-1]
        logits = torch.einsum("rhd,kd->rhk", inputs.q_nope[chosen].float(), ckv[:last])
        logits += torch.einsum("rhd,kd->rhk", inputs.q_pe[chosen].float(), kpe[:last])
        logits *= torch.tensor(inputs.sm_scale, dtype=torch.float32).item()
        if len(counts) > 1:
            logits.masked_fill_(torch.arange(last, device=inputs.device) >= counts[:, None, None], -math.inf)
        output[chosen] = torch.einsum("rhk,kd->rhd", torch.softmax(logits, -1), ckv[:last])
        undefined = logits.amax(-1).isinf()  # softmax calls this NaN, logsumexp infinite
        lse[chosen] = (torch.logsumexp(logits, -1) / math.log(2)).masked_fill(undefined, math.nan)
    if end < len(rows):
        output[rows[end] : rows[-1] + 1] = math.nan
        lse[rows[end] : rows[-1] + 1] = math.nan
