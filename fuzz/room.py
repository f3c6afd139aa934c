"""Memory of a GPU that workers share: ordinary cases fit into the share of each, heavy ones wait for room."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from fuzz.build import memory_bytes
from fuzz.case import Case, is_sparse
from fuzz.strata.strategy import CPU, GPU, Budget
from fuzz.units import locked

# Of a GPU's memory, what is kept for heavy cases, in slots; CUDA contexts and the golden reference take some of the
# rest.
_HEAVY_SHARE = 0.55
_SLOTS = 16
_OVERHEAD = 3 << 30
# Operands and results stand in memory up to three times, as a check that calls the kernel again copies them; those of a
# sparse case are never copied.
_COPIES = 3
_INTERVAL = 0.005  # seconds between two looks for a free slot


class Room:
    """What memory one worker may use.

    device    "cpu" or "cuda"
    workers   how many processes share the device
    journals  a directory that all workers of the run have in common
    """

    def __init__(self, device: str, workers: int, journals: Path) -> None:
        self._device = device
        lock = f"heavy-{os.environ.get('CUDA_VISIBLE_DEVICES', '')}"
        self._queue = journals / f"{lock}.lock"
        self._slots = [journals / f"{lock}-{number}.lock" for number in range(_SLOTS)]
        if device == "cpu":
            self.budget: Budget = CPU
            self._light = CPU.memory
            return
        total = torch.cuda.get_device_properties(0).total_memory
        heavy = min(GPU.memory, int((total * _HEAVY_SHARE - _OVERHEAD) / _COPIES))
        self.budget = replace(GPU, memory=heavy)
        self._slot = total * _HEAVY_SHARE / _SLOTS
        self._light = max(0, int((total * (1 - _HEAVY_SHARE) / workers - _OVERHEAD) / _COPIES))

    @contextlib.contextmanager
    def taken(self, case: Case) -> Iterator[None]:
        """Hold the memory that `case` needs; a heavy one waits until other workers' heavy cases leave so much."""
        nbytes = memory_bytes(case, self._device)
        if nbytes <= self._light:
            yield
            return
        needed = nbytes * (1 if is_sparse(case) else _COPIES) + _OVERHEAD
        with contextlib.ExitStack() as held:
            with locked(self._queue):  # one looks for slots at a time, so that a large case gets its turn
                self._take(min(_SLOTS, math.ceil(needed / self._slot)), held)
            try:
                yield
            finally:
                if self._device == "cuda":
                    torch.cuda.empty_cache()

    def _take(self, count: int, held: contextlib.ExitStack) -> None:
        """Wait for so many slots. The system releases them if the process dies."""
        free = self._slots
        while True:
            taken = []
            for slot in free:
                with contextlib.ExitStack() as attempt:
                    if attempt.enter_context(locked(slot, wait=False)):
                        held.push(attempt.pop_all())
                        taken.append(slot)
                if len(taken) == count:
                    return
            count -= len(taken)
            free = [slot for slot in free if slot not in taken]
            time.sleep(_INTERVAL)
