"""The last lines that a process printed."""

from __future__ import annotations

import contextlib
import os
import re

_KEPT = 1 << 14  # bytes
_LINES = 12
_LINE = 200
# What faulthandler says of no use to the reader: our own frames, under those of the kernel, and all loaded libraries.
_OURS = re.compile(r'  File ".*/fuzz/(sandbox/\w+|checks/\w+|target|rig|solution)\.py", line |  File "<string>"')
_NOISE = re.compile(r"Extension modules: |Current thread's C stack trace|^$")


class Tail:
    """Reads what comes out of a pipe, so that nobody who writes into it has to wait, and keeps the end."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.is_open = True
        self._kept = b""
        os.set_blocking(file, False)

    def read(self) -> bool:
        """Take in what there is; False at the end."""
        while self.is_open:
            try:
                part = os.read(self.file, 1 << 16)
            except BlockingIOError:
                return True
            if not part:
                return False
            self._kept = (self._kept + part)[-_KEPT:]
        return False

    def clear(self) -> None:
        """Forget it."""
        self._kept = b""

    def text(self) -> str:
        """The last lines, without what cannot be printed."""
        lines = self._kept.decode(errors="replace").splitlines()
        told = [line for line in lines if not _OURS.match(line) and not _NOISE.match(line)]
        return "\n".join("".join(c if c.isprintable() else " " for c in line)[:_LINE] for line in told[-_LINES:])

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            with contextlib.suppress(OSError):
                os.close(self.file)
