"""What a journal and a dump say of a case, and of the machine that it ran on."""

from __future__ import annotations

import platform
from importlib.metadata import version

import torch

from fuzz.case import Case, strata_of
from fuzz.journal import Event
from fuzz.strata.lengths import TILE_KEYS, TILE_QUERIES

# What the simplest case of all has too, and a range of lengths about the size of a tile: cases that fail for another
# reason shrink into it.
_NO_TRAITS = frozenset(strata_of(Case(lengths=((1, 1, 1),)))) | {"lengths:two-rounds"}


def describe(case: Case) -> Event:
    """The part of a journal's line that tells the case: case (JSON), strata, traits, size."""
    return {"case": case.to_json(), "strata": strata_of(case), "traits": sorted(traits_of(case)), "size": case.size}


def traits_of(case: Case) -> frozenset[str]:
    """What sets the case apart from the simplest case of all; see `fuzz.buckets`."""
    queries = max((q_len for _, q_len, _ in case.lengths), default=0)
    keys = max((kv_len for _, _, kv_len in case.lengths), default=0)
    reaches = {
        "lengths:requests": case.batch > 1,
        "lengths:queries": queries > 1,
        "lengths:query-tiles": queries > TILE_QUERIES,
        "lengths:keys": keys > 1,
        "lengths:key-tiles": keys > TILE_KEYS,
    }
    return frozenset(strata_of(case)) - _NO_TRAITS | {name for name, reached in reaches.items() if reached}


def device_name(device: str) -> str:
    """The name of the GPU, or what stands in for one."""
    return torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU, Triton interpreter"


def versions() -> dict[str, str]:
    """What a result depends on, besides the kernel."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("torch", "triton", "hypothesis")}
