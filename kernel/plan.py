"""Tile sizes and the split, from the device alone: a request's bits must not depend on what else is in the batch."""

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch

from .contract import CKV_DIM, KPE_DIM, NUM_HEADS

MERGE_OPTIONS = {"num_warps": 1}
# So many registers that two programs fit on a multiprocessor.
SHORT_OPTIONS = {"num_warps": 8, "maxnreg": 128}
_SHORT_PIECES = 4


@dataclass(frozen=True)
class Tile:
    """How one program cuts its work: `queries` x 16 heads against `keys` keys at a time, gathered in `pieces` of a row.

    `stages` is the depth of the pipeline of gathers.
    """

    queries: int
    keys: int
    stages: int
    pieces: int
    num_warps: int

    @cached_property
    def options(self) -> dict[str, int]:
        """What the compiler is told."""
        return {"num_warps": self.num_warps}

    def constants(self) -> dict[str, int]:
        return {
            "HEADS": NUM_HEADS,
            "CKV": CKV_DIM,
            "KPE": KPE_DIM,
            "BLOCK_N": self.keys,
            "STAGES": self.stages,
            "PIECES": self.pieces,
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """What a device runs.

    tile, lone   how programs of `prefill` and `lone` cut their work
    chunk        keys per query in a chunk of a split request, see split.py
    short        requests of up to so many keys go to `short`
    few          keys up to which it takes its smaller tile
    shorts       programs that it starts at most, shared out among the rows
    mergers      programs that `merge` starts at most, shared out among the requests
    listed       longer requests go to prefill_hopper.py, which works through a list of items, not to `prefill`
    """

    tile: Tile
    lone: Tile
    chunk: int = 256
    short: int = 64
    few: int = 32
    shorts: int = 1024
    mergers: int = 8192
    listed: bool = False

    def tiles(self, total_q: int, batch: int) -> int:
        """How many tiles the requests and the padding own at most, see lookup.py."""
        return total_q // self.tile.queries + batch + 1

    def rows(self, total_q: int) -> int:
        """How many rows each program of `short` looks at."""
        return -(-total_q // self.shorts)

    def slots(self, num_kv_indices: int) -> int:
        """How many slots the requests own at most, 32,896 bytes of scratch each; 0 where none is long enough."""
        return 2 * num_kv_indices // self.chunk if num_kv_indices > self.chunk else 0

    def merge_team(self, batch: int) -> int:
        """How many programs merge the chunks of each request."""
        return max(1, min(64, self.mergers // batch))

    def items(self, total_q: int, batch: int, num_kv_indices: int) -> int:
        """How many items the list holds at most, see schedule.py."""
        return total_q // self.tile.queries + batch + self.slots(num_kv_indices)

    @cache  # noqa: B019 - a handful of plans, which live as long as the process
    def prefill_constants(self, vectors: bool) -> dict[str, Any]:
        return {"VECTORS": vectors, **self.tile.constants(), **self._shared, "SHORT": self.short}

    @cache  # noqa: B019
    def lone_constants(self, vectors: bool) -> dict[str, Any]:
        return {"VECTORS": vectors, **self.lone.constants(), **self._shared, "SHORT": self.short}

    @cache  # noqa: B019
    def short_constants(self, vectors: bool, loop: bool) -> dict[str, Any]:
        return {
            "VECTORS": vectors,
            "HEADS": NUM_HEADS,
            "CKV": CKV_DIM,
            "KPE": KPE_DIM,
            "PIECES": _SHORT_PIECES,
            "FEW": self.few,
            "SHORT": self.short,
            "LOOP": loop,
        }

    @cached_property
    def merge_constants(self) -> dict[str, Any]:
        return {"LISTED": self.listed, "HEADS": NUM_HEADS, "CKV": CKV_DIM, **self._shared}

    @cached_property
    def schedule_constants(self) -> dict[str, Any]:
        return {**self._shared, "SHORT": self.short, "TILES": 64, "FIELDS": 8}

    @cached_property
    def _shared(self) -> dict[str, int]:
        return {"QUERIES": self.tile.queries, "CHUNK": self.chunk}


_LONE = Tile(queries=1, keys=64, stages=2, pieces=4, num_warps=4)
_HOPPER = Plan(Tile(queries=4, keys=64, stages=2, pieces=2, num_warps=8), _LONE)
_LISTED = replace(_HOPPER, listed=True)
_BLACKWELL = Plan(Tile(queries=4, keys=32, stages=2, pieces=1, num_warps=8), _LONE)
# 92 KiB of shared memory, which every GPU since Ampere has.
_SMALL = Plan(_LONE, _LONE)
# Triton's interpreter on the CPU runs one program after the other: few of them, but every path within few keys.
_INTERPRETER = Plan(_HOPPER.tile, _LONE, chunk=128, short=8, few=4, shorts=4, mergers=1)
_PLANS = {9: _HOPPER, 10: _BLACKWELL}


def plan_for(capability: tuple[int, int]) -> Plan:
    """The plan for a compute capability (major, minor)."""
    return _PLANS.get(capability[0], _SMALL)


@cache
def plan_on(device: torch.device, listable: bool) -> Plan:
    """The plan for a device; `listable`: rows move in 16-byte pieces, and 32 bits hold every count."""
    if device.type == "cpu":
        return _INTERPRETER
    capability = torch.cuda.get_device_capability(device)
    return _LISTED if capability == (9, 0) and listable else plan_for(capability)


@cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
