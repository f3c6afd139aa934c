"""What the machine offers: cores and GPUs, counted without torch, and the environment of each worker process."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import MutableMapping
from pathlib import Path

from fuzz.options import UsageError
from fuzz.words import counted

# A case keeps a core busy, building operands and judging results, and the GPU hardly: as many processes as cores, as
# far as their CUDA contexts leave the GPU's memory to the cases.
WORKERS_PER_GPU = 16
WORKERS_PER_CORE = 16  # at most, where a number is asked for
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1  # of malloc.h
_PR_SET_PDEATHSIG = 1
DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET")  # what decides on which device a kernel runs
LONGEST_START = 30.0  # seconds that the interpreter and pytest take to start at most


def visible_gpus(environ: MutableMapping[str, str] = os.environ) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; CUDA stays uninitialised."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(index) for index in range(_gpus())]
    named = [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    return named if named and _gpus() else []  # a scheduler may name some where there is none


def _gpus() -> int:
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in Path("/dev").glob("nvidia*"))
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def choose_device(device: str, gpus: list[str]) -> str:
    """'cpu' or 'cuda' for --device auto, cpu or cuda.

    Raises:
        UsageError: cuda was asked for and there is none.
    """
    if device == "cuda" and not gpus:
        raise UsageError("--device cuda: no NVIDIA GPU is visible (nvidia-smi -L lists none, or CUDA_VISIBLE_DEVICES)")
    if device == "auto":
        return "cuda" if gpus else "cpu"
    return device


def auto_workers(device: str, gpus: list[str]) -> int:
    """The number of worker processes that `-n auto` means: every core, or a few for each GPU."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, WORKERS_PER_GPU * len(gpus)) if device == "cuda" else cores


def check_workers(asked: str) -> None:
    """Raise UsageError if so many worker processes would bring the machine to a standstill: each loads torch."""
    cores = len(os.sched_getaffinity(0))
    most = WORKERS_PER_CORE * cores
    if int(asked) > most:
        raise UsageError(f"-n {asked}: {counted(most, 'worker')} at most, as this machine has {counted(cores, 'core')}")


def prepare_worker(device: str, gpus: list[str], index: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the environment of worker number `index`, before it imports torch or Triton.

    Workers take the GPUs in turn; each also sees the next one, for the check `other-device`. Each computes on one core:
    with as many workers as cores, the threads of BLAS would only get in each other's way. Triton's cache is shared: its
    files are renamed into place when they are whole.
    """
    environ.setdefault("OMP_NUM_THREADS", "1")
    environ.setdefault("MKL_NUM_THREADS", "1")
    _keep_freed_memory()
    if device == "cuda":
        turn = index % len(gpus)
        environ["CUDA_VISIBLE_DEVICES"] = ",".join((gpus[turn:] + gpus[:turn])[:2])
    else:
        environ["CUDA_VISIBLE_DEVICES"] = ""
        environ.setdefault("TRITON_INTERPRET", "1")


def _keep_freed_memory() -> None:
    """Have glibc keep up to 256 MiB that were freed. Every operation of a verdict takes and frees megabytes; the system
    would clear these pages anew each time, a fifth of the time of a small case."""
    if hasattr(ctypes.CDLL(None), "mallopt"):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, 256 << 20)


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent, whose number is given, dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it is dead already


def process_start() -> float:
    """When this process started, in the time of time.monotonic: what a limit on wall time counts from.

    Now, for a process so old that it must have done something else before.
    """
    now = time.monotonic()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return now
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return now - age if 0 <= age <= LONGEST_START else now
