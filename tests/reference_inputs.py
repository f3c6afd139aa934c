"""Small inputs for the tests of the references and their bounds."""

import torch
from torch import Tensor

from kernel.contract import CKV_DIM, KPE_DIM, NUM_HEADS, Inputs


def make_inputs(
    lengths: list[tuple[int, int]],
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    sm_scale: float = 192**-0.5,
    padded_rows: int = 0,
    query_spread: float = 1.0,
) -> Inputs:
    """Normal values for requests of (q_len, kv_len), pages permuted; the cache has three pages that nobody uses."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    q_lens, kv_lens = zip(*lengths, strict=True) if lengths else ((), ())
    total_q, num_keys = sum(q_lens) + padded_rows, sum(kv_lens)
    return Inputs(
        q_nope=normal(total_q, NUM_HEADS, CKV_DIM) * query_spread,
        q_pe=normal(total_q, NUM_HEADS, KPE_DIM) * query_spread,
        ckv_cache=normal(num_keys + 3, 1, CKV_DIM),
        kpe_cache=normal(num_keys + 3, 1, KPE_DIM),
        qo_indptr=indptr(q_lens),
        kv_indptr=indptr(kv_lens),
        kv_indices=torch.randperm(num_keys + 3, generator=generator)[:num_keys].int(),
        sm_scale=sm_scale,
    )


def indptr(lengths: tuple[int, ...] | list[int]) -> Tensor:
    """Row pointer of consecutive runs: [0, l0, l0 + l1, ...], int32."""
    return torch.tensor([0, *lengths]).cumsum(0).int()
