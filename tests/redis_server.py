"""A real Redis server on the loopback address, for one test."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def redis_server() -> Iterator[tuple[str, subprocess.Popen]]:
    """(its address, its process); the test skips where there is none."""
    pytest.importorskip("redis", reason="the client for Redis is not installed: the extra mla-fuzz[cluster]")
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed (Debian's package of that name)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"],
        stdout=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < until
                time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}", server
    finally:
        server.kill()
        server.wait()
