"""Runs a command in a session of its own for as long as standard input stays open, and leaves nothing of it behind: the
one who holds the other end may be killed at any time.

    python -m fuzz.cluster.leash DIRECTORY COMMAND...

DIRECTORY is removed with what was killed; after an end of its own it stays, for the one who holds the leash.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time

from fuzz.machine import die_with

INTERVAL = 0.05


def main(directory: str, *command: str) -> int:
    """Returns the exit status of the command."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    leash = os.getpid()
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=lambda: _prepare(leash)
    )
    while child.poll() is None:
        if select.select([0], [], [], 0)[0] and not os.read(0, 1):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            shutil.rmtree(directory, ignore_errors=True)
            break
        time.sleep(INTERVAL)
    return child.returncode


def _prepare(leash: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    die_with(leash)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
