"""A paged MLA prefill kernel in plain torch, built as one for a GPU is: four queries at a time go over tiles of 64 keys
with an online softmax. It has one fault, for docs/tutorial.md to find."""

import math

import torch

QUERIES, KEYS = 4, 64


def run(q_nope, q_pe, ckv_cache, kpe_cache, qo_indptr, kv_indptr, kv_indices, sm_scale):
    query = torch.cat([q_nope, q_pe], -1).float()
    output = torch.zeros_like(q_nope)
    lse = torch.full(q_nope.shape[:2], -math.inf, device=q_nope.device)
    starts, slots = qo_indptr.tolist(), kv_indptr.tolist()
    for request in range(len(starts) - 1):
        pages = kv_indices[slots[request] : slots[request + 1]].long()
        value = ckv_cache[pages, 0].float()
        key = torch.cat([value, kpe_cache[pages, 0].float()], -1)
        end = starts[request + 1]
        for first in range(starts[request], end, QUERIES):
            rows = slice(first, min(first + QUERIES, end))
            visible = torch.arange(rows.start, rows.stop, device=query.device) - end + len(pages) + 1
            tiles = math.ceil(visible[0].item() / KEYS)
            output[rows], lse[rows] = attend(query[rows] * sm_scale, key, value, visible, tiles)
    return output, lse


def attend(query, key, value, visible, tiles):
    """Rows [n, 16, 576] over the first `tiles` tiles of keys; row i sees `visible[i]` keys. Softmax in base 2."""
    seen = (visible > 0)[:, None]
    top = query.new_full(query.shape[:2], -math.inf)
    total, acc = query.new_zeros(query.shape[:2]), query.new_zeros(*query.shape[:2], value.shape[-1])
    for start in range(0, tiles * KEYS, KEYS):
        tile = slice(start, start + KEYS)
        scores = query @ key[tile].T / math.log(2)
        hidden = torch.arange(start, start + scores.shape[-1], device=query.device) >= visible[:, None, None]
        scores = scores.masked_fill(hidden, -math.inf)
        new_top = torch.maximum(top, scores.amax(-1))
        shift = torch.where(seen, new_top, 0.0)  # no -inf minus -inf in rows that see no key
        weights, rescale = torch.exp2(scores - shift[..., None]), torch.exp2(top - shift)
        total = total * rescale + weights.sum(-1)
        acc = acc * rescale[..., None] + weights.bfloat16().float() @ value[tile]
        top = new_top
    output = torch.where(seen[..., None], acc / total[..., None], 0.0)
    return output.to(torch.bfloat16), torch.where(seen, top + torch.log2(total), -math.inf)
