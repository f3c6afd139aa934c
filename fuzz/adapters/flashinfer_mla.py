"""FlashInfer's BatchMLAPagedAttentionWrapper (package flashinfer-python), which plans on the host for each call.

Its kernels keep the maximum of the unscaled scores, leave the output of a split (of 32 keys or more) in 16 bits, are
compiled with -use_fast_math and, other than on Hopper, take P rounded to 16 bits into the denominator too: the numerics
profile `flashinfer`. Read and run as of 0.6.18.
"""

from __future__ import annotations

from functools import cache

import torch
from flashinfer.mla import BatchMLAPagedAttentionWrapper

from kernel.contract import CKV_DIM, KPE_DIM, NUM_HEADS, PAGE_SIZE

_WORKSPACE = 128 << 20  # bytes, what its documentation recommends


@cache
def _wrapper(device: torch.device) -> BatchMLAPagedAttentionWrapper:
    return BatchMLAPagedAttentionWrapper(torch.empty(_WORKSPACE, dtype=torch.int8, device=device), backend="auto")


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
    """Output [total_q, 16, 512] and base-2 lse [total_q, 16], as FlashInfer gives them."""
    wrapper = _wrapper(q_nope.device)
    wrapper.plan(
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        kv_len_arr=kv_indptr.diff(),
        num_heads=NUM_HEADS,
        head_dim_ckv=CKV_DIM,
        head_dim_kpe=KPE_DIM,
        page_size=PAGE_SIZE,
        causal=True,
        sm_scale=sm_scale,
        q_data_type=q_nope.dtype,
        kv_data_type=ckv_cache.dtype,
    )
    output, lse = wrapper.run(q_nope, q_pe, ckv_cache, kpe_cache, return_lse=True)
    return output, lse
