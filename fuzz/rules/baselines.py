"""The low-precision runs that FlashAttention and flex_attention measure a kernel's error with.

Both are the plain formula in the dtype of the operands, every intermediate tensor rounded to it, over a dense key
tensor gathered from the pages. Rows without a key are zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernel.contract import CKV_DIM, NUM_HEADS, Inputs


def flash_attention(inputs: Inputs) -> Tensor:
    """[total_q, 16, 512]: attention_ref(upcast=False, reorder_ops=True), the scale multiplied into the keys."""

    def weights(query: Tensor, key: Tensor, hidden: Tensor) -> Tensor:
        scores = _product(query, (key * inputs.sm_scale).mT)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1)

    return _dense(inputs, weights)


def flex_attention(inputs: Inputs) -> Tensor:
    """[total_q, 16, 512]: math_attention, scores rounded to 16 bits, then scaled and their softmax taken in float32."""

    def weights(query: Tensor, key: Tensor, hidden: Tensor) -> Tensor:
        scores = _product(query, key.mT).float() * inputs.sm_scale
        return scores.masked_fill(hidden, -torch.inf).softmax(-1).to(query.dtype)

    return _dense(inputs, weights)


def _dense(inputs: Inputs, weights: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    output = torch.zeros(inputs.q_nope.shape, dtype=inputs.q_nope.dtype)
    for request in range(inputs.batch):
        rows = slice(*inputs.qo_indptr[request : request + 2].tolist())
        pages = inputs.kv_indices[slice(*inputs.kv_indptr[request : request + 2].tolist())].long()
        value = inputs.ckv_cache[pages, 0]
        key = torch.cat((value, inputs.kpe_cache[pages, 0]), -1)
        query = torch.cat((inputs.q_nope[rows], inputs.q_pe[rows]), -1)
        visible = len(pages) - len(query) + 1 + torch.arange(len(query))
        seeing = visible > 0
        if not seeing.any():
            continue
        query, visible = query[seeing], visible[seeing]
        hidden = (torch.arange(len(pages)) >= visible[:, None]).repeat_interleave(NUM_HEADS, 0)
        out = _product(weights(query.flatten(0, 1), key, hidden), value)
        output[rows][seeing] = out.view(-1, NUM_HEADS, CKV_DIM)
    return output


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A matrix product with float32 sums and a 16-bit result, as a tensor core library gives it."""
    return (a.float() @ b.float()).to(a.dtype)
