"""What a run has done so far, counted from its journals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.buckets import Bucket, Failing, Found, kind_of, sort_out, telling
from fuzz.counts import Counts
from fuzz.files import number
from fuzz.journal import Event, Reader

ALIVE = "alive"  # the check that the death of a worker fails
GENERATE, SEARCH = "generate", "search"  # the phases that a case can belong to
FOUND = ".found"  # ends the names of the journals that hold what searches led to


@dataclass(slots=True)
class Tally:
    """How often something ran and how close it came to its bound."""

    cases: int = 0
    failed: int = 0
    worst: dict[str, float | None] = field(default_factory=dict)

    def add(self, ratios: Mapping[str, float | None], *, failed: bool) -> None:
        self.cases += 1
        self.failed += failed
        for check, ratio in ratios.items():
            self.worst[check] = _worse(self.worst.get(check), ratio)


def _worse(one: float | None, other: float | None) -> float | None:
    """The larger ratio; NaN is larger than any, None smaller."""
    if one is None or other is None:
        return other if one is None else one
    return one if math.isnan(one) or one >= other else other


class Totals:
    """Everything that a run has done so far. `cases` and the tallies count generated cases, not those of searches."""

    def __init__(self, directory: Path, names: str = "*") -> None:
        self._reader = Reader(directory, names)
        self._running: dict[str, Event] = {}
        self._generated: dict[Found, tuple[Failing, int]] = {}
        self._searching: dict[str, Failing] = {}
        self._searched: dict[Found, Failing] = {}
        self.pids: dict[str, int] = {}  # of the workers that are at work
        self.device: str | None = None
        self.versions: dict[str, str] = {}
        self.reach: dict[str, str] = {}  # all strata, each with the reason why it is never drawn or ""
        self.cases = 0
        self.elapsed = 0.0
        self.strata: dict[str, Tally] = {}
        self.checks: dict[str, Tally] = {}
        self.counts = Counts()
        self.errors: list[Event] = []
        self.warnings: list[str] = []
        self.lost: list[Event] = []  # case and why, of the cases that were running when their workers were lost
        self._unfinished: list[Event] = []
        self.stopped: str | None = None
        self._gone: dict[str, str | None] = {}  # worker -> what it died of, unless we ended it

    def update(self) -> None:
        """Take in what the journals hold since the last call."""
        for name, event in self._reader.new_events():
            self.take(name, event)
        self.settle()

    def take(self, name: str, event: Event) -> None:
        """Take in an event of the journal `name`; `settle` has to follow once the others that are there are in."""
        getattr(self, "_on_" + event["event"])(name, event)

    def settle(self) -> None:
        """Draw the conclusions from the deaths of workers that `take` has been told."""
        # only now have the last lines of the workers that are gone been read
        for worker, cause in self._gone.items():
            case = self._running.pop(worker, None)
            if case is not None and cause is not None:
                self._count(worker, case, {}, [{"check": ALIVE, "detail": cause}])
            elif case is not None:
                self._unfinished.append(case)
        self._gone.clear()

    def _on_worker(self, name: str, event: Event) -> None:
        self.pids[name] = event["pid"]

    def _on_ended(self, name: str, event: Event) -> None:
        self.pids.pop(name, None)

    def _on_device(self, name: str, event: Event) -> None:
        self.device = event["device"]
        self.versions = event["versions"]
        self.reach = event["strata"]

    def _on_case(self, name: str, event: Event) -> None:
        self._running[name] = event
        self.elapsed = max(self.elapsed, event["at"])

    def _on_verdict(self, name: str, event: Event) -> None:
        self._count(name, self._running.pop(name), event["ran"], event["findings"])

    def _on_died(self, name: str, event: Event) -> None:
        self._gone[event["worker"]] = "the process that ran the kernel died"

    def _on_hung(self, name: str, event: Event) -> None:
        self._gone[event["worker"]] = "the kernel did not return"

    def _on_killed(self, name: str, event: Event) -> None:
        self._gone[event["worker"]] = None

    def _on_shrunk(self, name: str, event: Event) -> None:
        self._searching.pop(event["worker"], None)
        key = kind_of(event["finding"]), frozenset(event["began_with"])
        self._searched[key] = Failing.of(event, event["finding"])

    def _on_error(self, name: str, event: Event) -> None:
        if all(event["message"] != known["message"] for known in self.errors):
            self.errors.append(event)

    def _on_warning(self, name: str, event: Event) -> None:
        if event["message"] not in self.warnings:
            self.warnings.append(event["message"])

    def _on_lost(self, name: str, event: Event) -> None:
        case = self._running.pop(name, None)
        if case is not None:
            self.lost.append({"case": case["case"], "why": event["why"]})

    def _on_resumed(self, name: str, event: Event) -> None:
        self.stopped = None
        self.errors.clear()

    def _on_stop(self, name: str, event: Event) -> None:
        self.stopped = self.stopped or event["reason"]

    def _count(self, name: str, case: Event, ran: dict[str, Any], findings: list[dict[str, Any]]) -> None:
        failing = {finding["check"]: Failing.of(case, finding) for finding in telling(findings)}
        if case["phase"] == SEARCH:
            for one in failing.values():
                self._searching[name] = min(self._searching.get(name, one), one, key=lambda one: one.size)
            return
        ratios = {check: number(ratio) for check, ratio in ran.items()}
        self.cases += 1
        for stratum in case["strata"]:
            self.strata.setdefault(stratum, Tally()).add(ratios, failed=bool(failing))
        failed = {finding["check"]: number(finding.get("ratio")) for finding in reversed(findings)}
        for check in ran.keys() | failed.keys():
            self.checks.setdefault(check, Tally()).add({check: ratios.get(check)}, failed=check in failed)
        self.counts.add(case["case"], case["strata"], ratios | failed, failed.keys())
        self.counts.pace.add(case["at"])
        for one in failing.values():
            # the smallest of each kind is enough: a kernel that is always wrong would fill the memory otherwise
            smallest, count = self._generated.get((one.kind, one.traits), (one, 0))
            self._generated[one.kind, one.traits] = min(smallest, one, key=lambda one: one.size), count + 1

    def began(self, worker: str) -> float:
        """When the case that a worker is in began, in seconds since the start; infinity if it is in none."""
        case = self._running.get(worker)
        return math.inf if case is None else case["at"]

    def worst(self, check: str) -> float | None:
        """The worst observed/bound ratio of a check."""
        return self.checks[check].worst[check] if check in self.checks else None

    def buckets(self) -> list[Bucket]:
        """All failures, sorted into buckets."""
        return sort_out(self._searched, self._generated, self._searching.values())

    def unfinished(self) -> list[Event]:
        """The cases that are running, or were when their workers had to stop."""
        return [*self._unfinished, *self._running.values()]

    def distinct(self) -> int:
        """The number of different failures, as far as searches have shown that they differ."""
        found = self.buckets()
        shrunk = {bucket.smallest.kind for bucket in found if bucket.shrunk}
        return sum(bucket.shrunk or bucket.smallest.kind not in shrunk for bucket in found)

    def explained(self, one: Failing) -> bool:
        """Whether a failing case belongs to a bucket that a search has found already."""
        return (one.kind, one.traits) in self._searched or any(
            bucket.shrunk and bucket.explains(one) for bucket in self.buckets()
        )
