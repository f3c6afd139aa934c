"""The kernel of this project: paged MLA prefill in plain torch, one request after the other."""

import math

import torch


def prefill(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale):
    """Output [total_q, 16, 512] and base-2 lse [total_q, 16] of causal attention over the pages of each request."""
    query = torch.cat([q_nope, q_pe], -1).float()
    output = torch.zeros_like(q_nope)
    lse = torch.full(q_nope.shape[:2], -math.inf, device=q_nope.device)
    starts, slots = qo_indptr.tolist(), kv_indptr.tolist()
    for request in range(len(starts) - 1):
        pages = kv_indices[slots[request] : slots[request + 1]].long()
        q_len, kv_len = starts[request + 1] - starts[request], len(pages)
        rows = slice(starts[request] + max(0, q_len - kv_len), starts[request + 1])  # those that see a key
        if kv_len == 0 or rows.start == rows.stop:
            continue
        value = ckv_cache[pages, 0].float()
        key = torch.cat([value, kpe_cache[pages, 0].float()], -1)
        scores = query[rows] @ key.T * (sm_scale / math.log(2))  # [rows, 16, kv_len], in base 2
        visible = torch.arange(kv_len - (rows.stop - rows.start), kv_len, device=scores.device) + 1
        hidden = torch.arange(kv_len, device=scores.device) >= visible[:, None, None]
        scores = scores.masked_fill(hidden, -math.inf)
        top = scores.amax(-1, keepdim=True)
        weights = torch.exp2(scores - top)
        total = weights.sum(-1, keepdim=True)
        output[rows] = (weights.to(q_nope.dtype).float() @ value / total).to(q_nope.dtype)
        lse[rows] = (top + torch.log2(total))[..., 0]
    return output, lse
