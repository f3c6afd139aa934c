"""vLLM's FlashAttention-3 in its MLA form, for Hopper: package vllm, read as of 0.33.0 and 0.21.0.

`flash_attn_varlen_func` of vllm.vllm_flash_attn with fa_version=3, as the backend FLASH_ATTN_MLA has it for decode and
for prefill of up to 512 queries. The rotary parts are its q and k, the latent cache its v, the latent queries its q_v;
a row of the block table holds the pages of a request. The mask is causal and aligned to the bottom right.

The backend has pages of 16 tokens or more and plans on the device beforehand; here pages have 1 and the function plans
by itself, with as many splits as it likes. It keeps the maximum of the unscaled scores and is compiled with
-use_fast_math: the numerics profile `fast-math`. Its LSE is a natural logarithm [16, total_q], which is multiplied by
log2(e) and transposed here. A row of the mask without keys gives an output of zero, as its documentation says.

It reads 16 bytes at a time, by TMA or not, and does not ask whether addresses and strides are multiples of that: other
operands are copied here.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from vllm.vllm_flash_attn import flash_attn_varlen_func

_ALIGNMENT = 16  # bytes


def run(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    ckv_cache: torch.Tensor,
    kpe_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output [total_q, 16, 512] and base-2 lse [total_q, 16]; the lengths are read on the host."""
    longest_q, longest_k = (
        max((end - start for start, end in pairwise(offsets.tolist())), default=0) for offsets in (qo_indptr, kv_indptr)
    )
    q_nope, q_pe, ckv_cache, kpe_cache = map(_aligned, (q_nope, q_pe, ckv_cache, kpe_cache))
    positions = kv_indptr[:-1, None] + torch.arange(longest_k, device=kv_indptr.device)
    output, lse = flash_attn_varlen_func(
        q=q_pe,
        k=kpe_cache[:, :, None],
        v=ckv_cache[:, :, None],
        q_v=q_nope,
        max_seqlen_q=max(longest_q, 1),  # as the backend has it
        cu_seqlens_q=qo_indptr.int().contiguous(),
        max_seqlen_k=longest_k,
        seqused_k=kv_indptr.diff().int(),
        block_table=kv_indices[positions.clamp(max=len(kv_indices) - 1)].int(),
        softmax_scale=float(sm_scale),
        causal=True,
        return_softmax_lse=True,
        fa_version=3,
    )
    return output, lse.T * math.log2(math.e)


def _aligned(operand: torch.Tensor) -> torch.Tensor:
    """The operand, or a contiguous copy where 16 bytes of it at a time cannot be read."""
    steps = operand.data_ptr(), *(stride * operand.itemsize for stride in operand.stride()[:-1])
    if operand.stride(-1) == 1 and not any(step % _ALIGNMENT for step in steps):
        return operand
    return operand.clone(memory_format=torch.contiguous_format)
