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

from fuzz.files import write_json
from fuzz.options import UsageError
from fuzz.run import Run
from fuzz.summary import write_results
from fuzz.totals import Totals

RESULTS = ("summary.json", "junit.xml", "report.html", "coverage.json", "failures", "journal")


@contextmanager
def occupied(directory: Path, *, keep: bool) -> Iterator[None]:
    """Have a directory for one run: created, locked, and free of the results of an earlier run. Those go to
    DIR/earlier/<when it started> with `keep`; if it was killed, its results are made from its journals first.

    Raises:
        UsageError: the directory cannot be used.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"--out {directory}: there is a file in the way") from None
    except OSError as error:
        raise UsageError(f"--out {directory}: {error.strerror}") from error
    with locked(directory):
        if (directory / "journal").exists():
            _clear(directory, keep=keep)
        (directory / "journal").mkdir()
        yield


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other processes from writing results into a directory.

    Raises:
        UsageError: one is doing so, or nobody can.
    """
    try:
        lock = (directory / ".lock").open("a")
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{directory}: another run is writing there") from None
        yield


def save(run: Run, began: str | None = None) -> None:
    """Write run.json, from which a run can be understood later. `began` is local time, %Y%m%d-%H%M%S; default now."""
    write_json(run.journals / "run.json", run.to_json() | {"began": began or time.strftime("%Y%m%d-%H%M%S")})


def load(directory: Path) -> tuple[Run, str]:
    """The run that left its journals in a directory, wherever it did so first, and when it began.

    Raises:
        UsageError: there is none.
    """
    path = directory / "journal" / "run.json"
    try:
        values = json.loads(path.read_text())
        began = values.pop("began")
        return dataclasses.replace(Run.from_json(values), directory=directory), began
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{directory}: no run has left its journals there") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}: {error!r}") from error


def _clear(directory: Path, *, keep: bool) -> None:
    if not keep:
        for name in ("failures", "journal"):
            shutil.rmtree(directory / name, ignore_errors=True)
        return
    run, began = None, "unknown"
    with contextlib.suppress(UsageError):  # killed before it had written a run.json
        run, began = load(directory)
    place = directory / "earlier" / began
    number = 1
    while place.exists():
        number += 1
        place = directory / "earlier" / f"{began}-{number}"
    place.mkdir(parents=True)
    for name in RESULTS:
        if (directory / name).exists():
            (directory / name).rename(place / name)
    if run is not None and not (place / "summary.json").exists():
        recover(dataclasses.replace(run, directory=place))


def recover(run: Run) -> int:
    """Write the results of a run that was killed. Returns its exit status."""
    totals = Totals(run.journals)
    totals.update()
    totals.stopped = totals.stopped or "killed"
    status = 1 if totals.buckets() else 2
    write_results(run, totals, totals.elapsed, status)
    return status
