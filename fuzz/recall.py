"""What earlier runs found, so that the next one tries it first: kept in Hypothesis' example database.

The entries are cases in JSON, not the choices that Hypothesis stores itself: those mean nothing to another version of
it, or after any change of a strategy. Which database, if any, is a matter of the settings profile (`fuzz.profiles`); it
is shared by all workers and runs in a directory, and by several machines if it is on a disk that they share or, with
--database, on a server (`fuzz.corpus`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from hypothesis import settings
from hypothesis.database import ExampleDatabase

from fuzz.corpus import Corpus
from fuzz.files import strict
from fuzz.journal import Event

_MOST = 100  # entries that one run tries


class Recall:
    """The failing cases known of a kernel: check and case, as JSON."""

    def __init__(self, kernel: str, database: ExampleDatabase | None) -> None:
        self._database = database
        self._key = f"mla-fuzz: failing cases of {kernel}".encode()

    def known(self) -> Iterator[tuple[str, Event]]:
        """(check, case) of what is known, the shortest first; entries that are none are forgotten."""
        if self._database is None:
            return
        for entry in sorted(self._database.fetch(self._key), key=lambda entry: (len(entry), entry))[:_MOST]:
            try:
                value = json.loads(entry)
                check, case = value["check"], value["case"]
            except (ValueError, TypeError, KeyError):
                self._database.delete(self._key, entry)
                continue
            yield check, case

    def remember(self, check: str, case: Event) -> None:
        """Keep a case that fails a check."""
        if self._database is not None:
            self._database.save(self._key, _entry(check, case))

    def forget(self, check: str, case: Event) -> None:
        """Drop a case that does not fail any more, or is none."""
        if self._database is not None:
            self._database.delete(self._key, _entry(check, case))


def database(url: str | None, warn: Callable[[str], None]) -> ExampleDatabase | None:
    """The one on a Redis server, which `warn` is told of when it is away, or that of the profile in force."""
    if url is not None:
        return Corpus(url, warn)
    current = settings.default
    return None if current is None else current.database


def _entry(check: str, case: Event) -> bytes:
    return json.dumps(strict({"check": check, "case": case}), sort_keys=True).encode()
