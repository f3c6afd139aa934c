"""A paged MLA prefill kernel in plain torch with one fault: masked scores are -5e4 instead of -inf.

Fine as long as every real score is far above -5e4, so ordinary tests pass. Several production kernels had it.
"""

import math

import torch


def run(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale):
    output = torch.zeros_like(q_nope)
    lse = torch.full(q_nope.shape[:2], -math.inf, device=q_nope.device)
    for request in range(len(qo_indptr) - 1):
        rows = slice(*qo_indptr[request : request + 2].tolist())
        pages = kv_indices[slice(*kv_indptr[request : request + 2].tolist())].long()
        q_len, kv_len = rows.stop - rows.start, len(pages)
        if q_len == 0 or kv_len == 0:
            continue
        key, rotary = ckv_cache[pages, 0].float(), kpe_cache[pages, 0].float()
        scores = sm_scale * (q_nope[rows].float() @ key.T + q_pe[rows].float() @ rotary.T)  # [q_len, 16, kv_len]
        last = torch.arange(kv_len - q_len, kv_len, device=scores.device)[:, None, None]
        scores = scores.masked_fill(torch.arange(kv_len, device=scores.device) > last, -5e4)
        top = scores.max(-1, keepdim=True).values
        weights = torch.exp(scores - top)
        total = weights.sum(-1, keepdim=True)
        output[rows] = (weights.to(q_nope.dtype).float() @ key / total).to(q_nope.dtype)
        lse[rows] = ((top + total.log()) / math.log(2))[..., 0]
    return output, lse
