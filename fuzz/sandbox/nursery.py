"""The process from which those that run a kernel are forked: it has imported what they need and done nothing else.

A process of its own, spawned, so that a new child takes milliseconds instead of the seconds that importing torch takes,
and no CUDA context, thread or lock of the worker is ever in it. It ends with the worker, and its children with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time

from fuzz.machine import die_with
from fuzz.sandbox.wire import Ended, receive, send


def main(parent: int, control: int) -> None:
    """Fork and reap children as process `parent` asks for it over the socket `control`, until that is closed.

    Requests: {"fork": {"directory", "path"}}, where the child is to be and its sys.path, with its files -> {"pid"};
    {"reap": pid, "patience": seconds} -> {"status"}, as os.waitpid gives it, or null if the child had to be killed
    after that time.
    """
    die_with(parent)
    from fuzz.checks.results import warm_up
    from fuzz.sandbox import inside

    warm_up()
    requests = socket.socket(fileno=control)
    children: set[int] = set()
    with contextlib.suppress(Ended):
        while True:
            message, files = receive(requests)
            if "fork" in message:
                nursery = os.getpid()
                pid = os.fork()
                if not pid:
                    requests.close()
                    die_with(nursery)
                    os.chdir(message["fork"]["directory"])
                    sys.path[:] = message["fork"]["path"]
                    sys.exit(inside.main(*files))
                for file in files:
                    os.close(file)
                children.add(pid)
                send(requests, {"pid": pid})
            else:
                children.discard(message["reap"])
                send(requests, {"status": _reap(message["reap"], message["patience"])})
    for pid in children:
        _reap(pid, 0)


def _reap(pid: int, patience: float) -> int | None:
    """Wait for a child, and kill it and its process group after some seconds."""
    until = time.monotonic() + patience
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found or time.monotonic() >= until:
            break
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if found:
        return status
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it has no group of its own yet
    os.waitpid(pid, 0)
    return None
