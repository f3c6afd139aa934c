"""The caches as most servers keep them: latent and rotary key of a position side by side in one row."""

from __future__ import annotations

import torch

from fuzz import guards
from kernel.contract import CKV_DIM, KPE_DIM

_LARGE = 1 << 28  # bytes


def fused_cache(
    ckv_cache: torch.Tensor, kpe_cache: torch.Tensor, kv_indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache [num_pages, 1, 576], contiguous, and kv_indices into it as int64.

    Only pages that kv_indices names are copied, so that a pool of millions stays cheap; the others are NaN, or zero
    from 256 MiB on, whatever the operands have there. On the CPU a pool as large as that would not fit: there it is cut
    down to the pages that are named, and their ids are no longer those of the case.
    """
    pages, order = kv_indices.long().unique(return_inverse=True)
    width, num_pages, places = CKV_DIM + KPE_DIM, len(ckv_cache), pages
    if ckv_cache.device.type == "cpu" and num_pages * width * ckv_cache.itemsize >= _LARGE:
        num_pages, places = len(pages) + 1, torch.arange(len(pages)) + 1  # page 0 stays dead
    cache = guards.allocate((num_pages, 1, width), ckv_cache.dtype, ckv_cache.device)
    cache[places] = torch.cat([ckv_cache[pages], kpe_cache[pages]], dim=-1)
    return cache, places[order]
