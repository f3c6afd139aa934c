"""Plain torch: the pages of each request gathered, then scaled_dot_product_attention. It gives no LSE.

Rows that see no key are left out of the call: torch does not say what they would get.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


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
    """Output [total_q, 16, 512]; waits for the device to learn the lengths."""
    output = torch.zeros_like(q_nope)
    query = torch.cat([q_nope, q_pe], dim=-1).transpose(0, 1)  # [16, total_q, 576]
    rows, slots = qo_indptr.tolist(), kv_indptr.tolist()
    for request in range(len(rows) - 1):
        pages = kv_indices[slots[request] : slots[request + 1]].long()
        kv_len, end = len(pages), rows[request + 1]
        start = max(rows[request], end - kv_len)
        if start == end:
            continue
        value = ckv_cache[pages, 0]
        key = torch.cat([value, kpe_cache[pages, 0]], dim=-1)
        seen = torch.ones(end - start, kv_len, dtype=torch.bool, device=query.device).tril(kv_len - (end - start))
        attended = scaled_dot_product_attention(
            query[None, :, start:end],
            key.expand(1, query.shape[0], -1, -1),
            value.expand(1, query.shape[0], -1, -1),
            attn_mask=seen,
            scale=float(sm_scale),
        )
        output[start:end] = attended[0].transpose(0, 1)
    return output
