"""The corpus of failing cases on a Redis server, for runs on several machines: Hypothesis' own database, of which a run
does not depend. A server that is away costs the run what it knew, never the run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

from hypothesis.database import ExampleDatabase

from fuzz.options import UsageError
from fuzz.parsers import without_password

KEPT = timedelta(days=90)  # after the last run that asked for the cases of its kernel
TIMEOUT = 2.0  # seconds
PAUSE = 30.0  # seconds until a server that was away is asked again


class Corpus(ExampleDatabase):
    """The database at a redis:// address. `warn` is told when the server cannot be reached, once each time."""

    def __init__(self, url: str, warn: Callable[[str], None]) -> None:
        super().__init__()
        require()
        from hypothesis.extra.redis import RedisExampleDatabase
        from redis import Redis, RedisError
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._url = url
        self._warn = warn
        self._errors = (RedisError, OSError)
        try:
            client = Redis.from_url(
                url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT, retry=Retry(NoBackoff(), 0)
            )
        except ValueError as error:
            raise UsageError(f"--database {without_password(url)}: {error}") from None
        self._database = RedisExampleDatabase(client, expire_after=KEPT)
        self._away_until = 0.0

    def fetch(self, key: bytes) -> Iterable[bytes]:
        found: list[bytes] = []
        with self._reachable() as reachable:
            if reachable:
                found += self._database.fetch(key)
        return found

    def save(self, key: bytes, value: bytes) -> None:
        with self._reachable() as reachable:
            if reachable:
                self._database.save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        with self._reachable() as reachable:
            if reachable:
                self._database.delete(key, value)

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[bool]:
        """Whether to ask the server; what it does not answer is left."""
        try:
            yield time.monotonic() >= self._away_until
        except self._errors as error:
            self._away_until = time.monotonic() + PAUSE
            self._warn(f"--database {without_password(self._url)}: {error}; the run goes on without its corpus")


def require() -> None:
    """Raise UsageError where the client for Redis is not installed."""
    try:
        import redis  # noqa: F401
    except ImportError:
        raise UsageError("--database needs the package redis, of the extra mla-fuzz[cluster]") from None
