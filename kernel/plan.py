"""Tile sizes, from the device alone: a request's bits must not depend on what else is in the batch."""

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class Tile:
    """How one program cuts its work: queries × 16 heads against `keys` keys at a time."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int


# By major compute capability: the largest tile without spills in the loop over full tiles, within the shared memory.
_HOPPER = Tile(queries=4, keys=64, num_warps=8, num_stages=2)
_TILES = {9: _HOPPER, 10: Tile(queries=4, keys=32, num_warps=8, num_stages=2)}
# 56 KiB of shared memory, which every GPU since Ampere has.
_SMALL = Tile(queries=1, keys=32, num_warps=4, num_stages=2)


def tile_for(capability: tuple[int, int]) -> Tile:
    """The tile for a compute capability (major, minor)."""
    return _TILES.get(capability[0], _SMALL)


@cache
def tile_on(device: torch.device) -> Tile:
    """The tile for a device; Triton's interpreter on the CPU takes Hopper's."""
    return _HOPPER if device.type == "cpu" else tile_for(torch.cuda.get_device_capability(device))
