"""Input sets: drawn as published suites draw theirs, and strata of ours.

The suites' sets have their distributions, page tables and kinds of lengths at sizes that a CPU computes in no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzz.build import build
from fuzz.case import Case, is_bell_shaped
from fuzz.strata.lengths import Runs
from kernel.contract import CKV_DIM, KPE_DIM, NUM_HEADS, Inputs

Lengths = Sequence[tuple[int, int]]  # (q_len, kv_len) of each request

RAGGED: Lengths = ((1, 1), (3, 70), (17, 300), (2, 1025))
EQUAL: Lengths = ((5, 129), (5, 129), (5, 129))


@dataclass(frozen=True)
class InputSet:
    """bell   values are bell-shaped, so that the lambda form of the bound is a verdict
    ours   a stratum of the fuzzer, not what a published suite draws
    """

    name: str
    make: Callable[[], Inputs]
    bell: bool
    ours: bool


def _drawn(
    lengths: Lengths,
    draw: Callable[..., Tensor] = torch.randn,
    *,
    in_order: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> Inputs:
    """Operands of the given distribution; pages in order or permuted."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(42)
        q_lens, kv_lens = zip(*lengths, strict=True)
        keys = sum(kv_lens)

        def values(*shape: int) -> Tensor:
            return draw(*shape).to(dtype)

        return Inputs(
            q_nope=values(sum(q_lens), NUM_HEADS, CKV_DIM),
            q_pe=values(sum(q_lens), NUM_HEADS, KPE_DIM),
            ckv_cache=values(keys, 1, CKV_DIM),
            kpe_cache=values(keys, 1, KPE_DIM),
            qo_indptr=_offsets(q_lens),
            kv_indptr=_offsets(kv_lens),
            kv_indices=(torch.arange(keys) if in_order else torch.randperm(keys)).int(),
            sm_scale=1 / math.sqrt(192),
        )


def _offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def _clamped_tenths(*shape: int) -> Tensor:
    """FlashMLA's values."""
    return (torch.randn(*shape) / 10).clamp(-1, 1)


SUITES = (
    InputSet("normal, ragged", lambda: _drawn(RAGGED), bell=True, ours=False),
    InputSet("normal, equal", lambda: _drawn(EQUAL), bell=True, ours=False),
    InputSet("normal, an empty request", lambda: _drawn([*EQUAL[:2], (3, 0)]), bell=True, ours=False),
    InputSet("uniform", lambda: _drawn(EQUAL, torch.rand), bell=False, ours=False),
    InputSet("clamped tenths", lambda: _drawn(RAGGED, _clamped_tenths), bell=True, ours=False),
    InputSet("float16, equal", lambda: _drawn(EQUAL, in_order=True, dtype=torch.float16), bell=True, ours=False),
)


_LENGTHS = ((1, 3, 70), (1, 2, 5), (1, 9, 200))


def _stratum(values: str, runs: Runs = _LENGTHS, name: str = "", scale: str = "trained") -> InputSet:
    case = Case(runs, values=values, pages="permuted", spare_pages=3, scale=scale)
    return InputSet(name or values, lambda: build(case), is_bell_shaped(case), ours=True)


STRATA = (
    _stratum("bell"),
    _stratum("bell", ((1, 3, 70), (1, 5, 2), (1, 2, 0)), "masked-rows"),
    _stratum("bell", scale="large", name="large scale"),
    _stratum("all-equal"),
    _stratum("constant"),
    _stratum("one-hot"),
    _stratum("needle-edge"),
    _stratum("needle-beyond"),
    _stratum("power-of-two", scale="ln2"),
    _stratum("rising"),
    _stratum("falling"),
    _stratum("correlated", scale="ln2"),
    _stratum("logits-below"),
    _stratum("cancelling-scores"),
    _stratum("huge"),
)
