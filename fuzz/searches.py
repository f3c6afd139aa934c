"""The failures that a worker came to, and the search for the smallest case of each that nothing explains yet."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from fuzz.buckets import Failing
from fuzz.execution import Execution, Outcome, Outcomes, Stop, key_of
from fuzz.journal import Event, Journal
from fuzz.recall import Recall, database
from fuzz.reproducer import evidence_name
from fuzz.run import Run
from fuzz.totals import FOUND, SEARCH, Totals
from fuzz.units import Unit, explore, locked, seed_of

if TYPE_CHECKING:
    from fuzz.case import Case
    from fuzz.property import Property

# A search may take this long, and all of them half the time of a worker: a kernel that is always wrong would else be
# searched all night.
SEARCH_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Discovery:
    """A failing case, with what is needed to come to it again: the unit, and the outcomes of the cases before it."""

    unit: Unit
    outcomes: Outcomes
    failing: Failing


class SearchEnded(BaseException):
    """Ends a search for a smaller case before Hypothesis does."""


class Searches:
    """What one worker has to search and has found.

    failing  the first failing case of each check that it met
    waiting  discoveries that were not searched yet
    news     whether there is one among them that no search was tried for
    """

    def __init__(self, run: Run, name: str, tested: Property, execution: Execution, *, by_choices: bool) -> None:
        """`by_choices`: a search begins with the choices from which the case was drawn; else with the case itself."""
        self.failing: dict[str, Failing] = {}
        self.waiting: list[Discovery] = []
        self.news = False
        self._run, self._name, self._tested, self._execution = run, name, tested, execution
        self._by_choices = by_choices
        self._found = Journal(run.journals, f"{name}{FOUND}")
        self._known = Totals(run.journals, f"*{FOUND}")
        self._recall = Recall(
            run.options.subject,
            database(run.options.database, lambda message: execution.journal.write("warning", message=message)),
        )
        self._kinds: set[tuple[str, frozenset[str]]] = set()
        self._spent = 0.0

    def note(self, outcome: Outcome, unit: Unit, outcomes: Outcomes) -> None:
        """Keep what is new of the failures of a case, to be searched."""
        for failing in outcome.failing.values():
            self.failing.setdefault(failing.check, failing)
            if (failing.kind, failing.traits) not in self._kinds:
                self._kinds.add((failing.kind, failing.traits))
                self.waiting.append(Discovery(unit, outcomes, failing))
                self.news = True

    def try_known(self) -> None:
        """Run the cases that failed in earlier runs, if no other worker does. They are no part of what is generated:
        the same seed gives the same cases, whatever is known."""
        with locked(self._run.journals / "known.lock", wait=False) as mine:
            if not mine or (self._run.journals / "known").exists():
                return
            (self._run.journals / "known").touch()
            limit = time.monotonic() + self._limit()
            for check, value in self._recall.known():
                if time.monotonic() > limit:
                    return
                try:
                    case = self._tested.revive(value, check)
                except ValueError:
                    continue  # of another version, or for another contract
                errors = self._execution.errors
                failing = self._keep(case, check).failing.get(check)
                if failing is not None:
                    self.failing.setdefault(check, failing)
                    self._tell(failing, failing)
                elif self._execution.errors == errors:
                    self._recall.forget(check, value)

    def search(self, share: float) -> None:
        """Search for the smallest case of each discovery that nothing explains yet, within a share of the time."""
        self.news = False
        waiting, self.waiting = self.waiting, []
        for discovery in waiting:
            check = discovery.failing.check
            self._known.update()
            if self._known.explained(discovery.failing):
                continue
            now = time.monotonic()
            if self._spent > share * (now - self._execution.began):
                self.waiting.append(discovery)
                continue
            with locked(self._run.journals / f"{check}.lock", wait=False) as mine:
                if not mine:
                    self.waiting.append(discovery)
                    continue
                smallest = self._smallest(discovery)
                self._tell(smallest, discovery.failing)
                self._recall.remember(check, smallest.case)
            self._keep(self._tested.revive(smallest.case, check), check)
            self._spent += time.monotonic() - now

    def _limit(self) -> float:
        """Seconds that a search may take."""
        return min(SEARCH_SECONDS, (self._run.options.max_time or float("inf")) / 4)

    def _tell(self, smallest: Failing, discovered: Failing) -> None:
        began_with = sorted(discovered.traits)
        self._found.write("shrunk", worker=self._name, began_with=began_with, **smallest.to_json())

    def _keep(self, case: Case, check: str) -> Outcome:
        """Run a case that failed a check once more, and keep what the kernel did."""
        self._execution.stop_if_due(SEARCH)
        event = self._tested.describe(case)
        place = self._run.evidence / evidence_name(check, event["case"])
        return self._execution.execute(event, None, SEARCH, lambda: self._tested.keep(case, check, place))

    def _smallest(self, discovery: Discovery) -> Failing:
        """The smallest case that is found in time. Choices that depend on earlier ones keep Hypothesis from it, so the
        case itself is made smaller in the end."""
        limit = time.monotonic() + self._limit()
        found = self._shrunk(discovery, limit) if self._by_choices else discovery.failing
        return self._simplest(discovery, found, limit)

    def _shrunk(self, discovery: Discovery, limit: float) -> Failing:
        """Come to the failing case again without the kernel, then let Hypothesis shrink it: while the same check fails,
        and not in a way that is explained already."""
        unit, outcomes, check = discovery.unit, dict(discovery.outcomes), discovery.failing.check
        smallest = discovery.failing
        found = False

        def body(case: Case) -> None:
            nonlocal smallest, found
            event = self._tested.describe(case)
            key = key_of(event["case"])
            if key not in outcomes:
                if not found or time.monotonic() > limit:
                    raise SearchEnded
                outcomes[key] = self._try(case, event, discovery)
            outcome = outcomes[key]
            outcome.guide()
            found = found or key == key_of(discovery.failing.case)
            failing = self._alike(outcome, discovery)
            if not found or failing is None:
                return
            smallest = min(smallest, failing, key=lambda one: one.size)
            raise failure_of(check)

        with contextlib.suppress(SearchEnded, failure_of(check)):
            explore(self._tested.strategy, seed_of(self._run.seed, unit.number), unit.cases, body, shrink=True)
        return smallest

    def _simplest(self, discovery: Discovery, smallest: Failing, limit: float) -> Failing:
        """Make a failing case of a discovery smaller, field by field, as far as it goes until the time `limit`."""

        def fails(case: Case) -> bool:
            nonlocal smallest
            failing = self._alike(self._try(case, self._tested.describe(case), discovery), discovery)
            smallest = failing or smallest
            return failing is not None

        with contextlib.suppress(Stop):  # what it has come to is worth keeping
            case = self._tested.revive(smallest.case, discovery.failing.check)
            self._tested.simplify(case, fails, limit - time.monotonic())
        return smallest

    def _try(self, case: Case, event: Event, discovery: Discovery) -> Outcome:
        """Run a case of a search."""
        self._execution.stop_if_due(SEARCH)
        also = frozenset({discovery.failing.check})
        return self._execution.execute(event, discovery.unit, SEARCH, lambda: self._tested.judge(case, also))

    def _alike(self, outcome: Outcome, discovery: Discovery) -> Failing | None:
        """The failure of a case that fails as a discovery does; None where that is another failure, and a known one:
        a search must not slip into it."""
        failing = outcome.failing.get(discovery.failing.check)
        if failing is None or failing.kind != discovery.failing.kind:
            return None
        return None if failing.traits != discovery.failing.traits and self._known.explained(failing) else failing


@cache
def failure_of(check: str) -> type[AssertionError]:
    """An exception class for each check: Hypothesis tells failures apart by class and place, and never shrinks one into
    another."""
    return type(f"{check.title().replace('-', '')}Failed", (AssertionError,), {})
