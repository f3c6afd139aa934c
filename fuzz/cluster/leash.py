"""Runs a command in a session of its own for as long as standard input stays open, and leaves nothing of it behind: the
one who holds the other end may be killed at any time.

    python -m fuzz.cluster.leash DIRECTORY COMMAND...

It goes into the background at once, out of the reach of Ray, which kills the children of a worker with it. The exit
status of the command is in DIRECTORY/status once it has ended. DIRECTORY is removed in the end.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from fuzz.journal import write_text
from fuzz.machine import die_with

STATUS = "status"
INTERVAL = 0.05


def main(directory: str, *command: str) -> None:
    """Returns at once, or in the background when standard input is closed."""
    if os.fork():
        return
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    leash = os.getpid()
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=lambda: _prepare(leash)
    )
    told = False
    while not _is_closed(INTERVAL):
        if not told and child.poll() is not None:
            write_text(Path(directory) / STATUS, str(child.returncode))
            told = True
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    shutil.rmtree(directory, ignore_errors=True)


def _is_closed(seconds: float) -> bool:
    return bool(select.select([0], [], [], seconds)[0]) and not os.read(0, 1000)


def _prepare(leash: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    die_with(leash)


if __name__ == "__main__":
    main(*sys.argv[1:])
