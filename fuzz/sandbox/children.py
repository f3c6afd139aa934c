"""The processes that run a kernel under test, and the one that forks them, as the worker has hold of them."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from functools import cache

from fuzz.machine import DEVICE_VARIABLES
from fuzz.sandbox.shared import Memory
from fuzz.sandbox.tail import Tail
from fuzz.sandbox.wire import Message, receive, send

_ANSWER_SECONDS = 30.0  # that an answer may take once it has begun
DYING_SECONDS = 2.0  # that a process may take to end after it has closed its socket


class Child:
    """A process that runs the kernel."""

    def __init__(self, pid: int, messages: socket.socket, output: int, errors: int, memory: Memory) -> None:
        self.pid, self.messages, self.memory = pid, messages, memory
        self.output, self.errors = Tail(output), Tail(errors)
        self.messages.settimeout(_ANSWER_SECONDS)

    def ask(self, asked: Message, files: Sequence[int], seconds: float) -> Message:
        """Raises TimeoutError if no answer comes in that time, Ended if none will."""
        self.listen()
        for tail in self._tails:
            tail.clear()
        send(self.messages, asked, files)
        until = time.monotonic() + seconds
        waiting = select.poll()
        waiting.register(self.messages, select.POLLIN)
        tails = {tail.file: tail for tail in self._tails if tail.is_open}
        for file in tails:
            waiting.register(file, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            for file, _ in waiting.poll(1000 * left):
                if file == self.messages.fileno():
                    self.listen()
                    return receive(self.messages)[0]
                if not tails[file].read():
                    waiting.unregister(file)
        raise TimeoutError

    def listen(self) -> None:
        """Read what it has printed."""
        for tail in self._tails:
            tail.read()

    def said(self) -> str:
        """The last lines that it printed."""
        return "\n".join(text for tail in self._tails if (text := tail.text()))

    @property
    def _tails(self) -> tuple[Tail, Tail]:
        return self.output, self.errors

    def close(self) -> None:
        self.messages.close()
        for tail in self._tails:
            tail.close()
        self.memory.close()


def nursery() -> Nursery:
    """The nursery of this process for the device that its variables now choose, one for all its sandboxes: it takes as
    long to start as torch to import, and children have the variables that it was started with.
    """
    return _nursery(os.getpid(), *map(os.environ.get, DEVICE_VARIABLES))


@cache
def _nursery(*_variables: int | str | None) -> Nursery:
    return Nursery()


class Nursery:
    """The process that forks the children, see `fuzz.sandbox.nursery`; started for the first of them."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from fuzz.sandbox.nursery import main;"
            f" main({os.getpid()}, {theirs.fileno()})"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the worker
        )
        theirs.close()
        self.pid = process.pid
        self._requests = ours
        self._sockets = weakref.WeakSet([ours])
        weakref.finalize(self, _end, process, self._sockets)

    def fork(self) -> Child:
        memory = Memory()
        ours, theirs = socket.socketpair()
        (output, printed), (errors, complained) = os.pipe(), os.pipe()
        try:
            asked = {"fork": {"directory": os.getcwd(), "path": sys.path}}
            send(self._requests, asked, [theirs.fileno(), printed, complained, memory.file])
            pid = receive(self._requests)[0]["pid"]
        finally:
            theirs.close()
            os.close(printed)
            os.close(complained)
        self._sockets.add(ours)
        return Child(pid, ours, output, errors, memory)

    def reap(self, pid: int, patience: float) -> int | None:
        """Wait for a child, and kill it after some seconds; returns its status if that was not needed."""
        send(self._requests, {"reap": pid, "patience": patience})
        status: int | None = receive(self._requests)[0]["status"]
        return status


def _end(process: subprocess.Popen[bytes], sockets: weakref.WeakSet[socket.socket]) -> None:
    """The nursery ends when its socket is closed, and kills children that have not."""
    for each in sockets:
        each.close()
    try:
        process.wait(DYING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
