"""Earlier runs of the same kernel: which failures are new, which are known, and which did not come back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.reproducer import replay_command
from fuzz.run import Run
from fuzz.words import date

_SHOWN = 12  # of the latest runs


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run that began before another one. `began` is local time, %Y%m%d-%H%M%S."""

    began: str
    directory: Path
    summary: dict[str, Any]

    @property
    def buckets(self) -> dict[str, dict[str, Any]]:
        """Its failures by bucket."""
        return {failure["bucket"]: failure for failure in self.summary["failures"]}


def earlier_runs(run: Run, began: str, schema: int) -> list[Earlier]:
    """The latest runs of the kernel of `run` before it, the oldest first: those that --out moved to DIR/earlier, and
    those in other directories beside DIR, with a summary of this schema."""
    here = run.directory.resolve()
    found = {}
    for path in (*here.glob("earlier/*/summary.json"), *here.parent.glob("*/summary.json")):
        one = _read(path, schema) if path.parent != here else None
        if one is not None and one.summary["kernel"] == run.options.kernel and one.began < began:
            found[path.parent] = one
    return sorted(found.values(), key=lambda one: one.began)[-_SHOWN:]


def began(directory: Path) -> str:
    """When a run began, from its run.json; empty if that cannot be read."""
    values = _object(directory / "journal" / "run.json")
    return str(values.get("began", "")) if values else ""


@dataclass(frozen=True, slots=True)
class History:
    """Earlier runs and this one.

    runs   (when, summary), the oldest first and this one last
    rows   (bucket, status, whether each run saw it); status is new, known or fixed
    fixed  commands that replay what is fixed
    """

    runs: list[tuple[str, Mapping[str, Any]]]
    rows: list[tuple[str, str, list[bool]]]
    fixed: list[str]


def history(run: Run, began: str, summary: Mapping[str, Any], earlier: list[Earlier]) -> History:
    """How the failures of a run compare with those of the earlier ones."""
    now = {failure["bucket"] for failure in summary["failures"]}
    seen = [set(one.buckets) for one in earlier] + [now]
    rows = []
    for bucket in sorted(set().union(*seen)):
        marks = [bucket in buckets for buckets in seen]
        status = "fixed" if not marks[-1] else "known" if any(marks[:-1]) else "new"
        rows.append((bucket, status, marks))
    rows.sort(key=lambda row: (("new", "known", "fixed").index(row[1]), row[0]))
    latest = {bucket: one.directory / entry["path"] for one in earlier for bucket, entry in one.buckets.items()}
    fixed = [replay_command(latest[bucket], run.options.kernel) for bucket, status, _ in rows if status == "fixed"]
    runs = [(date(one.began), one.summary) for one in earlier] + [(date(began), summary)]
    return History(runs, rows, fixed)


def _read(path: Path, schema: int) -> Earlier | None:
    """A run that ended with a verdict; files that are something else are passed over."""
    summary = _object(path)
    if summary is None or summary.get("schema") != schema or summary.get("exit_status") not in (0, 1):
        return None
    when = began(path.parent)
    return Earlier(when, path.parent, summary) if when else None


def _object(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
