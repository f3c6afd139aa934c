"""Kernel time on the GPU, by the method of the peers' figures: events around one call, cold L2, median of 25."""

import statistics
import time
from collections.abc import Callable

import torch

SAMPLES = 25
_FLUSH_BYTES = 512 * 1024 * 1024
_SLEEP_CYCLES = 1_000_000  # about 0.5 ms, so that the host has launched everything before the first event is reached


def kernel_us(call: Callable[[], object], samples: int = SAMPLES) -> float:
    """Median microseconds on the GPU of one call."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    call()
    times: list[float] = []
    for _ in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        torch.cuda._sleep(_SLEEP_CYCLES)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def host_us(call: Callable[[], object], samples: int = 200) -> float:
    """Median microseconds that the host spends in one call, the GPU idle before it."""
    times = []
    for _ in range(samples):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)
