"""Runs a command in a session of its own for as long as standard input stays open, and leaves nothing of it behind: the
one who holds the other end may be killed at any time.

    python -m fuzz.cluster.leash DIRECTORY COMMAND...

It goes into the background at once, out of the reach of Ray, which kills the children of a worker with it. It makes
DIRECTORY, and starts the command with the first byte that it is sent: what comes before may put files there. What the
command prints is in DIRECTORY/said, its exit status in DIRECTORY/status once it has ended. DIRECTORY is removed in the
end.
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
from pathlib import Path

from fuzz.files import write_text
from fuzz.machine import die_with

STATUS = "status"
SAID = "said"
INTERVAL = 0.05
_MOST_TRIES = 100


def main(directory: str, *command: str) -> None:
    """Returns once there is the directory, and in the background when standard input is closed.

    Raises:
        OSError: There cannot be such a directory.
    """
    far, near = os.pipe()
    if os.fork():
        os.close(near)
        if not os.read(far, 1):
            raise OSError(f"there can be no directory {directory}")
        return
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    place = Path(directory)
    place.mkdir(mode=0o700)
    try:
        os.write(near, b".")
        os.close(near)
        if os.read(0, 1):
            _run(command, place)
    finally:
        _remove(place)


def _run(command: tuple[str, ...], place: Path) -> None:
    leash = os.getpid()
    with (place / SAID).open("wb") as said:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            preexec_fn=lambda: _prepare(leash),
        )
    told = False
    while not _is_closed(INTERVAL):
        if not told and child.poll() is not None:
            write_text(place / STATUS, str(child.returncode))
            told = True
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _is_closed(seconds: float) -> bool:
    return bool(select.select([0], [], [], seconds)[0]) and not os.read(0, 1000)


def _remove(place: Path) -> None:
    """Once may not be enough: a process that is killed still ends the call that it is in, which may make a file."""
    for _ in range(_MOST_TRIES):
        shutil.rmtree(place, ignore_errors=True)
        if not place.exists():
            return
        time.sleep(INTERVAL)


def _prepare(leash: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    die_with(leash)


if __name__ == "__main__":
    main(*sys.argv[1:])
