"""Which failures are one: what a failure needs, and the name of its bucket.

A bucket is told by the check that failed, by what the smallest case needs for it, and by the kind of row; never by a
seed. What a case needs is its traits: the strata that set it apart from the simplest case of all, and how far its
lengths reach beyond it. Whatever strata a failure was first seen in, shrinking takes away all that it does not need. So
of two shrunk failures of a check, one whose traits the other has too is the same failure: the other one only was not
shrunk as far. That 65 keys are at an edge may be chance; a failure at 66 shows that it is.

The checks that call the kernel again count only where the others passed: a result that is wrong the first time is wrong
again. Calls that do not return are told apart by their cause: a signal, an exception, a hang. Variants of the kernel
are different code, so their failures are told apart too, where it says which of them computes a row; the kernel itself
is the same throughout a run, so it is kept in case.json and not in the name.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from fuzz.demands import AGAIN
from fuzz.journal import Event

_LONGEST_NAME = 150
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+^_.-]*")

# Traits that the lengths have besides their strata, each with the one that it implies.
REACHES = {
    "lengths:requests": None,  # two or more requests
    "lengths:queries": None,  # two or more queries in one
    "lengths:query-tiles": "lengths:queries",  # more than a tile of a kernel holds
    "lengths:keys": None,
    "lengths:key-tiles": "lengths:keys",
}
_IMPLIED = {name: implied for name, implied in REACHES.items() if implied is not None} | {
    "lengths:masked-rows": "lengths:queries",
    "lengths:long-context": "lengths:key-tiles",
    "lengths:many-requests": "lengths:requests",
    "lengths:ragged": "lengths:requests",
    "lengths:uneven": "lengths:ragged",
    "lengths:zero-run": "lengths:requests",
}


# Traits that a failing case may have by chance: lengths that shrink stop just past an edge, or at those of a server.
BY_CHANCE = frozenset(f"lengths:{name}" for name in ("key-edge", "prefix-edge", "query-edge", "server", "splits"))

def telling(findings: Sequence[Event]) -> list[Event]:
    """The findings on a case that count as failures, the worst of each check: those of the checks that call the kernel
    again only if there are no others."""
    first = [finding for finding in findings if finding["check"] not in AGAIN] or findings
    return list({finding["check"]: finding for finding in reversed(first)}.values())


def kind_of(finding: Mapping[str, Any]) -> str:
    """The check that failed, where a call did not return why, and the variant of the kernel where that is known."""
    return "-".join(filter(None, (finding["check"], finding.get("cause"), finding.get("variant"))))


def is_same(needs: Set[str], traits: Set[str]) -> bool:
    """Whether a shrunk failure with `traits` may be that of a bucket which needs no more but for edges."""
    return needs - BY_CHANCE <= traits


def common(needs: Set[str], traits: Set[str]) -> frozenset[str]:
    """What a bucket needs once a shrunk failure with `traits` is in it."""
    return frozenset(needs - BY_CHANCE | needs & traits)


def title(traits: Iterable[str]) -> str:
    """The traits in short, without those that others imply; 'any' for none: then the simplest case of all fails."""
    return "+".join(_telling(traits)) or "any"


def bucket_name(check: str, traits: Iterable[str], finding: Mapping[str, Any], *, shrunk: bool) -> str:
    """A directory name. A failure that was not shrunk has its check alone, as nobody knows what it needs."""
    rows = finding["rows"] if finding.get("index") is not None else ""
    kind = "-".join(filter(None, (check, rows, finding.get("cause"), finding.get("variant"))))
    if not shrunk:
        return f"{kind}+unshrunk"
    name = "+".join([kind, *(trait.replace(":", "-") for trait in _telling(traits))])
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}+{zlib.crc32(name.encode()):08x}"


def is_bucket_name(text: object) -> bool:
    """Whether `bucket_name` could have made it: a name of one directory, on any system."""
    return isinstance(text, str) and len(text) <= _LONGEST_NAME + 9 and _NAME.fullmatch(text) is not None


def _telling(traits: Iterable[str]) -> list[str]:
    traits = set(traits)
    implied: set[str] = set()
    for trait in traits:
        while trait := _IMPLIED.get(trait, ""):
            implied.add(trait)
    return sorted(traits - implied)


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
        """The way of failing, see `kind_of`."""
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
    """Failures that look alike: the smallest case, the traits that they need, and how many generated cases belong
    here."""

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
        self.smallest = min(self.smallest, one, key=lambda one: one.size)
        self.needs = common(self.needs, one.traits) if self.shrunk else self.smallest.traits


# Failures that were found alike: their kind, and the traits of the generated case.
Found = tuple[str, frozenset[str]]


def sort_out(
    searched: Mapping[Found, Failing], generated: Mapping[Found, tuple[Failing, int]], searching: Iterable[Failing]
) -> list[Bucket]:
    """All failures of a run, sorted into buckets.

    searched   what searches led to, by what they began with
    generated  the smallest generated case of each, and how many there were
    searching  the smallest case so far of the searches that go on

    Only a shrunk case tells what its failure needs. So each opens a bucket, unless it is in one that needs no more; a
    generated case belongs to the bucket that its own search led to, or to one all of whose traits it has. What no
    bucket explains shares one bucket for each kind.
    """
    found: list[Bucket] = []
    for one in sorted(searched.values(), key=lambda one: (len(one.traits - BY_CHANCE), one.size)):
        home = next((bucket for bucket in found if bucket.is_that_of(one)), None)
        if home is None:
            found.append(Bucket(one, one.traits, shrunk=True))
        else:
            home.take(one)
    found.sort(key=lambda bucket: bucket.smallest.size)
    left: dict[str, Bucket] = {}
    for key, (one, count) in generated.items():
        origin = searched.get(key, one)
        home = next((bucket for bucket in found if bucket.explains(origin)), None)
        if home is None:
            home = left.setdefault(one.kind, Bucket(one, one.traits, shrunk=False))
            home.take(one)
        home.cases += count
    for one in searching:
        if one.kind in left and not any(bucket.explains(one) for bucket in found):
            left[one.kind].take(one)
    return found + [left[kind] for kind in sorted(left)]
