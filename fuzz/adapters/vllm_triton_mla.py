"""vLLM's Triton MLA attention over a paged cache of latents: package vllm, read and run as of 0.33.0.

`decode_attention_fwd` of vllm.v1.attention.ops.triton_decode_attention with is_mla=True, as the backend TRITON_MLA has
it. It has no causal mask and takes one query per sequence: as in that backend, each query row becomes a sequence of its
own, with the pages of its request and the number of keys that it sees. (vLLM's prefill proper expands the latents into
heads: another operation.)

Rows go in batches of 512, each with as many splits as the backend would take if it had no upper limit. The backend has
pages of 16 tokens or more, the function says that it supports 1. Its LSE is a natural logarithm, which is multiplied by
log2(e) here. A row that sees no key is passed as a sequence of length 0; the backend has those for padding only.
"""

from __future__ import annotations

import math

import torch
from vllm.v1.attention.ops.triton_decode_attention import decode_attention_fwd

from fuzz.adapters.fused import fused_cache
from kernel.contract import CKV_DIM, NUM_HEADS, PAGE_SIZE

_ROWS = 512
_KEYS_PER_SPLIT = 512


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
    """Output [total_q, 16, 512] and base-2 lse [total_q, 16]; queries and caches are copied into fused rows, and the
    lengths are read on the host."""
    query = torch.cat([q_nope, q_pe], dim=-1)
    cache, slots = fused_cache(ckv_cache, kpe_cache, kv_indices)
    keys = cache[:, :, None]  # [num_pages, 1, 1, 576]
    output = torch.empty_like(query[..., :CKV_DIM], memory_format=torch.contiguous_format)
    lse = query.new_empty(query.shape[:2], dtype=torch.float32)

    q_len, kv_len = qo_indptr.diff(), kv_indptr.diff()
    request = torch.repeat_interleave(q_len)
    seen = (kv_len - q_len - qo_indptr[:-1])[request] + torch.arange(1, len(request) + 1, device=query.device)
    for start in range(0, len(request), _ROWS):
        rows = slice(start, min(start + _ROWS, len(request)))
        extents = seen[rows].clamp(min=0).int()
        longest = int(extents.max())
        positions = kv_indptr[request[rows], None] + torch.arange(longest, device=query.device)
        splits = 1 << max(longest // _KEYS_PER_SPLIT - 1, 0).bit_length()
        decode_attention_fwd(
            q=query[rows],
            k_buffer=keys,
            v_buffer=keys[..., :CKV_DIM],
            o=output[rows],
            lse=lse[rows],
            req_to_token=slots[positions.clamp(max=len(slots) - 1)].int(),
            b_seq_len=extents,
            attn_logits=query.new_empty((len(extents), NUM_HEADS, splits, CKV_DIM + 1), dtype=torch.float32),
            num_kv_splits=splits,
            sm_scale=float(sm_scale),
            page_size=PAGE_SIZE,
            is_mla=True,
        )
    return output, lse * math.log2(math.e)
