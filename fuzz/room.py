"""Memory of a GPU that workers share: ordinary cases fit into the share of each, heavy ones run one at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from fuzz.build import memory_bytes
from fuzz.case import Case
from fuzz.strata.strategy import CPU, GPU, Budget
from fuzz.units import locked

# Of a GPU's memory, what is kept for the one heavy case; CUDA contexts and the golden reference take some of the rest.
_HEAVY_SHARE = 0.55
_OVERHEAD = 3 << 30
# Operands and results stand in memory up to three times: a check that calls the kernel again copies them.
_COPIES = 3


class Room:
    """What memory one worker may use.

    device    "cpu" or "cuda"
    workers   how many processes share the device
    journals  a directory that all workers of the run have in common
    """

    def __init__(self, device: str, workers: int, journals: Path) -> None:
        self._device = device
        self._lock = journals / f"heavy-{os.environ.get('CUDA_VISIBLE_DEVICES', '')}.lock"
        if device == "cpu":
            self.budget: Budget = CPU
            self._light = CPU.memory
            return
        total = torch.cuda.get_device_properties(0).total_memory
        heavy = min(GPU.memory, int((total * _HEAVY_SHARE - _OVERHEAD) / _COPIES))
        self.budget = replace(GPU, memory=heavy)
        self._light = max(0, int((total * (1 - _HEAVY_SHARE) / workers - _OVERHEAD) / _COPIES))

    @contextlib.contextmanager
    def taken(self, case: Case) -> Iterator[None]:
        """Hold the memory that `case` needs; waits for another worker's heavy case if it is one itself."""
        if memory_bytes(case, self._device) <= self._light:
            yield
            return
        with locked(self._lock):
            try:
                yield
            finally:
                if self._device == "cuda":
                    torch.cuda.empty_cache()
