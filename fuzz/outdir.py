"""The directory of a run's results: one run at a time, and an earlier one is never overwritten."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzz.journal import write_json
from fuzz.options import UsageError
from fuzz.run import Run
from fuzz.summary import write_results
from fuzz.totals import Totals

RESULTS = ("summary.json", "junit.xml", "failures", "journal")


@contextmanager
def occupied(directory: Path, *, keep: bool) -> Iterator[None]:
    """Have a directory for one run: created, locked, and free of the results of an earlier run. Those go to
    DIR/earlier/<when it started> with `keep`; if it was killed, its results are made from its journals first.

    Raises:
        UsageError: the directory cannot be used.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / ".lock").open("a")
    except OSError as error:
        raise UsageError(f"--out {directory}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--out {directory}: another run is writing there") from None
        if (directory / "journal").exists():
            _clear(directory, keep=keep)
        (directory / "journal").mkdir()
        yield


def save(run: Run) -> None:
    """Write run.json, from which a run that was killed can be understood later."""
    write_json(run.journals / "run.json", run.to_json() | {"began": time.strftime("%Y%m%d-%H%M%S")})


def _clear(directory: Path, *, keep: bool) -> None:
    if not keep:
        for name in ("failures", "journal"):
            shutil.rmtree(directory / name, ignore_errors=True)
        return
    values = {}
    with contextlib.suppress(OSError, ValueError):  # killed before it had written one
        values = json.loads((directory / "journal" / "run.json").read_text())
    began = values.pop("began", "unknown")
    place = directory / "earlier" / began
    number = 1
    while place.exists():
        number += 1
        place = directory / "earlier" / f"{began}-{number}"
    place.mkdir(parents=True)
    for name in RESULTS:
        if (directory / name).exists():
            (directory / name).rename(place / name)
    if values and not (place / "summary.json").exists():
        _recover(dataclasses.replace(Run.from_json(values), directory=place))


def _recover(run: Run) -> None:
    """Write the results of a run that was killed."""
    totals = Totals(run.journals)
    totals.update()
    totals.stopped = totals.stopped or "killed"
    write_results(run, totals, totals.elapsed, exit_status=1 if totals.buckets() else 2)
