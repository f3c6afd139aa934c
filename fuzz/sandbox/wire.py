"""Messages between the processes of a sandbox: JSON behind its length, over a Unix socket, with files where needed.

JSON, not pickle: what comes out of a process that runs somebody's kernel is read, never executed.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

_HEADER = struct.Struct("=II")  # bytes of JSON, number of files
_MOST_FILES = 64
_MOST_BYTES = 1 << 26


class Ended(Exception):
    """The other side is gone, or does not keep to the protocol."""


def send(to: socket.socket, message: Message, files: Sequence[int] = ()) -> None:
    """Send a message, and copies of open files. Raises Ended."""
    content = json.dumps(message, separators=(",", ":")).encode()
    try:
        socket.send_fds(to, [_HEADER.pack(len(content), len(files))], files)
        to.sendall(content)
    except OSError as error:
        raise Ended from error


def receive(source: socket.socket) -> tuple[Message, list[int]]:
    """The next message, and the files that came with it, which the caller closes. Raises Ended."""
    files: list[int] = []
    try:
        header, files, _, _ = socket.recv_fds(source, _HEADER.size, _MOST_FILES)
        header += _exactly(source, _HEADER.size - len(header)) if header else b""
        size, count = _HEADER.unpack(header)
        if size > _MOST_BYTES or count != len(files):
            raise ValueError
        message = json.loads(_exactly(source, size))
        if not isinstance(message, dict):
            raise ValueError
        return message, files
    except (OSError, ValueError, struct.error) as error:
        for file in files:
            os.close(file)
        raise Ended from error


def _exactly(source: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        part = source.recv(min(size - len(content), 1 << 16))
        if not part:
            raise OSError("the other side is gone")
        content += part
    return bytes(content)
