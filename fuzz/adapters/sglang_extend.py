"""SGLang's unified extend attention in Triton: package sglang, read and run as of 0.5.23.

`extend_attention_fwd_unified` of sglang.kernels.ops.attention.extend_attention, which SGLang's Triton backend calls for
prefill under deterministic inference. It reads old and new keys alike from the paged cache by one list of slots: 576
elements for a key, the first 512 of them for its value. `prefix_lens` is kv_len − q_len; the slots are int64, as
SGLang's own `build_unified_kv_indices` makes them.

It gives no LSE. The longest run of queries is read on the host. SGLang itself has neither rows without keys nor padded
rows; what comes out there is returned as it is.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd_unified

from fuzz.adapters.fused import fused_cache
from kernel.contract import CKV_DIM


def run(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    ckv_cache: torch.Tensor,
    kpe_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
) -> torch.Tensor:
    """Output [total_q, 16, 512]; queries and caches are copied into the fused rows that SGLang keeps."""
    output = q_nope.new_empty(q_nope.shape)
    keys, slots = fused_cache(ckv_cache, kpe_cache, kv_indices)
    extend_attention_fwd_unified(
        q=torch.cat([q_nope, q_pe], dim=-1),
        o=output,
        k_buffer=keys,
        v_buffer=keys[..., :CKV_DIM],
        k_scale=1.0,
        v_scale=1.0,
        qo_indptr=qo_indptr.contiguous(),
        kv_indptr=kv_indptr.contiguous(),
        kv_indices=slots,
        prefix_lens=kv_indptr.diff() - qo_indptr.diff(),
        max_len_extend=max((end - start for start, end in pairwise(qo_indptr.tolist())), default=0),
        sm_scale=float(sm_scale),
    )
    return output
