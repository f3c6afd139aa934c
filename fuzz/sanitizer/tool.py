"""The program compute-sanitizer: where it is, and how a command is run under it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from fuzz.options import UsageError

PROGRAM = "compute-sanitizer"
_PADDING = 1 << 12  # bytes behind each allocation that belong to none: a row of a cache is 1 KiB
# Past so many errors it prints no more. One is enough to fail a case; but all races have to be told, as some are none.
_MOST_PRINTED = {"racecheck": 1000}
_ENOUGH_PRINTED = 20
_CONNECTING = 300  # seconds that the process may take until it uses CUDA: it imports torch and compiles before
_OPTIONS = {
    # API calls that fail are the judge's to see: torch and Triton make some on purpose.
    "memcheck": ("--padding", str(_PADDING), "--report-api-errors", "no"),
    "racecheck": ("--racecheck-report", "analysis"),
    "initcheck": (),
    "synccheck": (),
}


def require(tool: str, device: str) -> str:
    """The path of the program, for a run on 'cuda'.

    Raises:
        UsageError: it is not there, or the run is on another device.
    """
    if device != "cuda":
        raise UsageError(f"--sanitize {tool}: {PROGRAM} looks at an NVIDIA GPU, and this run is on the {device}")
    try:
        return find()
    except UsageError as error:
        raise UsageError(f"--sanitize {tool}: {error}") from error


def find(environ: Mapping[str, str] = os.environ) -> str:
    """The path of the program: on PATH, or in the CUDA toolkit that CUDA_HOME names or that is at its usual place.

    Raises:
        UsageError: it is not there.
    """
    toolkits = (environ.get("CUDA_HOME"), "/usr/local/cuda")
    places = [environ.get("PATH", ""), *(str(Path(toolkit, "bin")) for toolkit in toolkits if toolkit)]
    found = shutil.which(PROGRAM, path=os.pathsep.join(places))
    if found is None:
        raise UsageError(f"there is no {PROGRAM} on PATH, in CUDA_HOME or in /usr/local/cuda; it comes with CUDA")
    return found


def command(program: str, tool: str, log: Path, arguments: list[str]) -> list[str]:
    """The command that runs `arguments` under a tool, which writes what it sees into `log`."""
    return [
        program,
        *("--tool", tool),
        *("--log-file", str(log)),
        *("--launch-timeout", str(_CONNECTING)),
        *("--max-connections", "100"),  # for several of them at the same time
        *("--target-processes", "application-only"),  # not the compilers that it starts
        *("--print-limit", str(_MOST_PRINTED.get(tool, _ENOUGH_PRINTED))),
        *("--show-backtrace", "no"),
        *_OPTIONS[tool],
        *arguments,
    ]


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of such a process: each tensor is an allocation of its own, that ends where the tensor ends."""
    return {**environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
