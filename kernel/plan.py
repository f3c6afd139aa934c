"""Tile sizes and the split, from the device alone: a request's bits must not depend on what else is in the batch."""

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch

from .contract import CKV_DIM, KPE_DIM, NUM_HEADS
from .found import MOST_REQUESTS
from .schedule import TILES_PER_PROGRAM

_SIZES = {"HEADS": NUM_HEADS, "CKV": CKV_DIM, "KPE": KPE_DIM}


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

    def constants(self) -> dict[str, int]:
        return {**_SIZES, "BLOCK_N": self.keys, "STAGES": self.stages, "PIECES": self.pieces}


@dataclass(frozen=True, eq=False)
class Plan:
    """What a device runs.

    tile, lone   how programs of `prefill` and `lone` cut their work
    chunk        keys per query in a chunk of a split request, see split.py
    short, many  requests of up to so many keys go to `short`, unless they have more than so many keys and queries
    once, few    keys up to which it takes them at once, and in its smaller tile
    shorts       programs that it starts at most
    mergers      programs that `merge` starts at most, shared out among the requests
    at_once      chunks up to which it merges whole rows at once; `merge_round` at a time where there are more
    slices       parts of a row's columns that it merges apart then
    listed       longer requests go to prefill_hopper.py, which works through items, not to `prefill`
    found        requests up to which programs of prefill_hopper.py find their items without a list, see found.py
    early        the GPU can start a launch while the one before ends, see early.py
    """

    tile: Tile
    lone: Tile
    chunk: int = 256
    short: int = 128
    many: int = 2**30
    once: int = 64
    few: int = 32
    shorts: int = 1024
    mergers: int = 2048
    at_once: int = 8
    merge_round: int = 64
    slices: int = 8
    listed: bool = False
    found: int = MOST_REQUESTS
    early: bool = False

    def tiles(self, total_q: int, batch: int) -> int:
        """How many tiles the requests and the padding own at most, see lookup.py."""
        return total_q // self.tile.queries + batch + 1

    def short_programs(self, total_q: int) -> tuple[str, int]:
        """How programs of `short` find their rows, and how many there are."""
        return ("one", total_q) if total_q <= self.shorts else ("all", self.shorts)

    def slots(self, num_kv_indices: int) -> int:
        """How many slots the requests own at most, 32,896 bytes of scratch each; 0 where none is long enough."""
        return 2 * num_kv_indices // self.chunk if num_kv_indices > self.chunk else 0

    def is_short(self, q_len: int, sound: int) -> bool:
        """Whether `short` takes a request of so many queries and existing keys: `is_short` of lookup.py on the host."""
        return sound <= self.short and min(q_len, sound) <= self.many

    def merge_team(self, batch: int) -> int:
        """How many programs merge the chunks of each request."""
        return max(1, min(128, self.mergers // batch))

    def items(self, total_q: int, batch: int, num_kv_indices: int) -> int:
        """How many items the list holds at most, see schedule.py."""
        return total_q // self.tile.queries + batch + self.slots(num_kv_indices)

    def way_to_items(self, batch: int) -> str:
        """How programs of prefill_hopper.py come by their items, its ITEMS."""
        return "one" if batch == 1 else "found" if batch <= self.found else "listed"

    @cache  # noqa: B019 - a handful of plans, which live as long as the process
    def options(self, kernel: str) -> dict[str, int]:
        """What the compiler is told about a kernel, by its name."""
        # The warps of prefill_hopper are those that gather; it adds those that multiply itself.
        warps = {"short": 4, "lone": self.lone.num_warps, "prefill": self.tile.num_warps, "merge": 4}
        warps |= {"schedule": 4, "prefill_hopper": 4, "rest": 4}
        return {"num_warps": warps[kernel]} | ({"launch_pdl": True} if self.early else {})

    @cache  # noqa: B019
    def prefill_constants(self, vectors: bool) -> dict[str, Any]:
        return self._constants_of(self.tile, vectors)

    @cache  # noqa: B019
    def lone_constants(self, vectors: bool) -> dict[str, Any]:
        return self._constants_of(self.lone, vectors)

    @cache  # noqa: B019
    def short_constants(self, vectors: bool, rows: str, ahead: bool = False) -> dict[str, Any]:
        how = {"ROWS": rows, "WAIT": self.early, "AHEAD": ahead and self.early}
        return {"VECTORS": vectors, **_SIZES, **self._short_tiles, **how}

    @cache  # noqa: B019
    def hopper_constants(self, positive: bool, items: str, beside: bool = False) -> dict[str, Any]:
        return {"POSITIVE": positive, "ITEMS": items, "BESIDE": beside, "CHUNK": self.chunk, **self._short_rule}

    @cached_property
    def merge_constants(self) -> dict[str, Any]:
        return {"HEADS": NUM_HEADS, "CKV": CKV_DIM, **self._shared, **self._rounds, "WAIT": self.early}

    @cache  # noqa: B019
    def rest_constants(self, listed: bool, splits: bool) -> dict[str, Any]:
        how = {"LISTED": listed, "SPLITS": splits, "WAIT": self.early}
        return {"VECTORS": True, **_SIZES, **self._short_tiles, **self._shared, **self._rounds, **how}

    @cached_property
    def schedule_constants(self) -> dict[str, Any]:
        return {**self._shared, **self._short_rule, "TILES": TILES_PER_PROGRAM, "WAIT": self.early}

    def _constants_of(self, tile: Tile, vectors: bool) -> dict[str, Any]:
        return {"VECTORS": vectors, **tile.constants(), **self._shared, **self._short_rule, "WAIT": self.early}

    @cached_property
    def _short_tiles(self) -> dict[str, int]:
        return {"PIECES": 4, "FEW": self.few, "ONCE": self.once, **self._short_rule}

    @cached_property
    def _short_rule(self) -> dict[str, int]:
        return {"SHORT": self.short, "MANY": self.many}

    @cached_property
    def _rounds(self) -> dict[str, int]:
        return {"AT_ONCE": self.at_once, "ROUND": self.merge_round, "SLICES": self.slices}

    @cached_property
    def _shared(self) -> dict[str, int]:
        return {"QUERIES": self.tile.queries, "CHUNK": self.chunk}


_LONE = Tile(queries=1, keys=64, stages=2, pieces=4, num_warps=4)
_HOPPER = Plan(Tile(queries=4, keys=64, stages=2, pieces=2, num_warps=8), _LONE, early=True)
_LISTED = replace(_HOPPER, many=96, listed=True)
_BLACKWELL = Plan(Tile(queries=4, keys=32, stages=2, pieces=1, num_warps=8), _LONE, early=True)
# 92 KiB of shared memory, which every GPU since Ampere has.
_SMALL = Plan(_LONE, _LONE)
# Triton's interpreter on the CPU runs one program after the other: few of them, but every path within few keys.
_INTERPRETER = Plan(
    _HOPPER.tile,
    _LONE,
    chunk=128,
    short=16,
    many=6,
    once=8,
    few=4,
    shorts=4,
    mergers=1,
    at_once=2,
    merge_round=2,
    slices=2,
)
_EMULATED = replace(_INTERPRETER, listed=True, found=2)
_PLANS = {9: _HOPPER, 10: _BLACKWELL}


def plan_for(capability: tuple[int, int]) -> Plan:
    """The plan for a compute capability (major, minor)."""
    return _PLANS.get(capability[0], _SMALL)


@cache
def plan_on(device: torch.device, listable: bool) -> Plan:
    """The plan for a device; `listable`: rows move in 16-byte pieces, and 32 bits hold every count."""
    if device.type == "cuda" and listable and why_not_listed(torch.cuda.get_device_capability(device)) is None:
        return _LISTED
    return plan_portable(device, listable)


def plan_portable(device: torch.device, listable: bool) -> Plan:
    """The plan for a device without what one architecture alone can run, whether `listable` or not; see portable.py."""
    return _INTERPRETER if device.type == "cpu" else plan_for(torch.cuda.get_device_capability(device))


def plan_emulated(device: torch.device, listable: bool) -> Plan:
    """The plan for running Hopper's kernel in the interpreter, see emulated.py.

    Raises:
        ValueError: the operands are on a GPU.
    """
    if device.type != "cpu":
        raise ValueError(f"the operands are on {device}, but kernel.emulated takes CPU tensors: use kernel.run")
    return _EMULATED if listable else _INTERPRETER


@cache
def why_not_listed(capability: tuple[int, int]) -> str | None:
    """Why `prefill` runs in place of prefill_hopper.py on a compute capability; None where it does not."""
    if capability != (9, 0):
        return f"it is for compute capability 9.0, this is {capability[0]}.{capability[1]}"
    try:
        from . import prefill_hopper  # noqa: F401
    except (ImportError, AttributeError) as error:
        return f"this Triton's Gluon, which is experimental, lacks something that it needs: {error}"
    return None


@cache
def multiprocessors(device: torch.device) -> int:
    if device.type == "cpu":
        return 3  # the interpreter's: few, so that each has several items
    return torch.cuda.get_device_properties(device).multi_processor_count
