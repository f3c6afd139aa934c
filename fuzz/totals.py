"""What a run has done so far, counted from its journals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.buckets import BY_CHANCE, bucket_name, common, is_same, kind_of, telling, title
from fuzz.counts import Counts
from fuzz.journal import Event, Reader, number

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


@dataclass(frozen=True, slots=True)
class Failing:
    """A case on which one check failed."""

    check: str
    case: dict[str, Any]
    strata: list[str]
    traits: frozenset[str]
    size: tuple[int, ...]
    finding: dict[str, Any]

    @classmethod
    def of(cls, event: Event, finding: dict[str, Any]) -> Failing:
        traits, size = frozenset(event["traits"]), tuple(event["size"])
        return cls(finding["check"], event["case"], event["strata"], traits, size, finding)

    @property
    def kind(self) -> str:
        """The way of failing, see `fuzz.buckets.kind_of`."""
        return kind_of(self.finding)

    def to_json(self) -> Event:
        """The fields of an event from which `of` makes an equal one."""
        return {
            "case": self.case,
            "strata": self.strata,
            "traits": sorted(self.traits),
            "size": self.size,
            "finding": self.finding,
        }


@dataclass(slots=True)
class Bucket:
    """Failures that look alike: the smallest case, the traits that they need, and how many generated cases belong here.
    `fuzz.buckets` has the rule."""

    smallest: Failing
    needs: frozenset[str]
    shrunk: bool
    cases: int = 0

    @property
    def check(self) -> str:
        return self.smallest.check

    @property
    def stratum(self) -> str:
        """What a case needs to fail in this way, in short."""
        return title(self.needs)

    @property
    def name(self) -> str:
        """The name of its directory."""
        return bucket_name(self.check, self.needs, self.smallest.finding, shrunk=self.shrunk)

    def explains(self, one: Failing) -> bool:
        """Whether a failing case has every trait that this bucket needs."""
        return self.smallest.kind == one.kind and self.needs <= one.traits

    def is_that_of(self, one: Failing) -> bool:
        """Whether a shrunk case shows the failure of this bucket."""
        return self.smallest.kind == one.kind and is_same(self.needs, one.traits)

    def take(self, one: Failing) -> None:
        """Take a failing case in, and keep the smaller one. Of cases that were not shrunk, nothing else tells what they
        need."""
        self.smallest = min(self.smallest, one, key=_size)
        self.needs = common(self.needs, one.traits) if self.shrunk else self.smallest.traits


class Totals:
    """Everything that a run has done so far. `cases` and the tallies count generated cases, not those of searches."""

    def __init__(self, directory: Path, names: str = "*") -> None:
        self._reader = Reader(directory, names)
        self._running: dict[str, Event] = {}
        self._generated: dict[tuple[str, frozenset[str]], tuple[Failing, int]] = {}
        self._searching: dict[str, Failing] = {}
        self._searched: dict[tuple[str, frozenset[str]], Failing] = {}
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
                self._searching[name] = min(self._searching.get(name, one), one, key=_size)
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
            self._generated[one.kind, one.traits] = min(smallest, one, key=_size), count + 1

    def began(self, worker: str) -> float:
        """When the case that a worker is in began, in seconds since the start; infinity if it is in none."""
        case = self._running.get(worker)
        return math.inf if case is None else case["at"]

    def worst(self, check: str) -> float | None:
        """The worst observed/bound ratio of a check."""
        return self.checks[check].worst[check] if check in self.checks else None

    def buckets(self) -> list[Bucket]:
        """All failures, sorted into buckets.

        Only a shrunk case tells what its failure needs. So each opens a bucket, unless it is in one that needs no more;
        a generated case belongs to the bucket that its own search led to, or to one all of whose traits it has. What no
        bucket explains shares one bucket for each kind.
        """
        found: list[Bucket] = []
        for one in sorted(self._searched.values(), key=lambda one: (len(one.traits - BY_CHANCE), one.size)):
            home = next((bucket for bucket in found if bucket.is_that_of(one)), None)
            if home is None:
                found.append(Bucket(one, one.traits, shrunk=True))
            else:
                home.take(one)
        found.sort(key=lambda bucket: bucket.smallest.size)
        left: dict[str, Bucket] = {}
        for key, (one, count) in self._generated.items():
            origin = self._searched.get(key, one)
            home = next((bucket for bucket in found if bucket.explains(origin)), None)
            if home is None:
                home = left.setdefault(one.kind, Bucket(one, one.traits, shrunk=False))
                home.take(one)
            home.cases += count
        for one in self._searching.values():
            if one.kind in left and not any(bucket.explains(one) for bucket in found):
                left[one.kind].take(one)
        return found + [left[kind] for kind in sorted(left)]

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


def _size(one: Failing) -> tuple[int, ...]:
    return one.size
