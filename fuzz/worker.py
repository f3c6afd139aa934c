"""What one worker process does: it claims units, runs their cases, and searches a smaller case for each new failure."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hypothesis
import pytest
from hypothesis.strategies import SearchStrategy

from fuzz.buckets import telling
from fuzz.journal import Event, Journal, number, read, strict
from fuzz.machine import process_start
from fuzz.options import UsageError
from fuzz.recall import Recall, database
from fuzz.reproducer import evidence_name
from fuzz.run import Run
from fuzz.totals import FOUND, GENERATE, SEARCH, Failing, Totals
from fuzz.units import Board, Unit, explore, locked, seed_of

if TYPE_CHECKING:
    from fuzz.checks import Finding, Verdict

# Seconds before the deadline at which a worker stops by itself. A process with torch in it takes a while to end, the
# longer the more it took to start.
LEAST_RESERVE, MOST_RESERVE = 2.0, 8.0
# A search may take this long, and all of them half the time of a worker: a kernel that is always wrong would else be
# searched all night.
SEARCH_SECONDS = 120.0
SEARCH_SHARE = 0.5
# The checks whose ratio Hypothesis tries to drive up.
GUIDES = ("output", "lse")
# A worker whose judge raises so often has something wrong with it, not with a case.
MAX_ERRORS = 10


class Stop(BaseException):
    """Ends the run. Not an Exception: Hypothesis would take that for a failure of the kernel."""


class Interlude(BaseException):
    """Leaves a unit for a search."""


class SearchEnded(BaseException):
    """Ends a search for a smaller case before Hypothesis does."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of a case: how close it came to its bounds, and the checks that failed."""

    ratios: dict[str, float]
    failing: dict[str, Failing]

    @classmethod
    def of(cls, case: Event, ran: dict[str, Any], findings: list[dict[str, Any]]) -> Outcome:
        """From the lines of a journal, so that a case read back guides Hypothesis exactly as it did when it ran."""
        ratios = {check: number(ran.get(check)) for check in GUIDES}
        failing = {finding["check"]: Failing.of(case, finding) for finding in telling(findings)}
        return cls(
            {check: ratio for check, ratio in ratios.items() if ratio is not None and abs(ratio) < 1e300}, failing
        )


Outcomes = dict[str, Outcome]  # by the JSON of the case


@dataclass(frozen=True, slots=True)
class Discovery:
    """A failing case, with what is needed to come to it again: the unit, and the outcomes of the cases before it."""

    unit: Unit
    outcomes: Outcomes
    failing: Failing


class Worker:
    """One worker of a run. `failing` holds the first failing case of each check that it met."""

    def __init__(self, run: Run, name: str) -> None:
        self.failing: dict[str, Failing] = {}
        self._run = run
        self._name = name
        self._board = Board(run.journals, run.options.max_cases, run.options.shard)
        self._journal = Journal(run.journals, name)
        self._found = Journal(run.journals, f"{name}{FOUND}")
        self._known = Totals(run.journals, f"*{FOUND}")
        self._recall = Recall(run.options.subject, database(run.options.database, self._warn))
        self._kinds: set[tuple[str, frozenset[str]]] = set()
        self._discoveries: list[Discovery] = []
        self._news = False  # whether there is one that no search was tried for
        self._parent = os.getppid()
        self._began = time.monotonic()
        self._reserve = min(max(LEAST_RESERVE, (self._began - process_start()) / 2), MOST_RESERVE)
        self._searching = 0.0
        self._usual = 0.0
        self._errors = 0

    def refuse(self, error: UsageError) -> NoReturn:
        """End the run: it cannot do what was asked."""
        self._journal.write("error", usage=True, message=str(error))
        pytest.fail(str(error), pytrace=False)

    def tell(self, device: str, versions: dict[str, str], strata: dict[str, str]) -> None:
        """Write down what this worker runs on, and all strata, each with the reason why it is never drawn or ""."""
        self._journal.write("device", device=device, versions=versions, strata=strata)

    def _warn(self, message: str) -> None:
        self._journal.write("warning", message=message)

    def work(
        self,
        strategy: SearchStrategy[Any],
        describe: Callable[[Any], Event],
        judge: Callable[[Any, frozenset[str]], Verdict],
        keep: Callable[[Any, str, Path], Verdict],
        revive: Callable[[Event, str], Any],
        simplify: Callable[[Any, Callable[[Any], bool], float], None],
    ) -> None:
        """Try what earlier runs found, do units until none is left or the run has to stop, then what is left to search.

        strategy  draws cases
        describe  case -> its part of a journal line: case (JSON), strata, traits, size
        judge     case, checks that must be among those that run -> verdict
        keep      case, check that it failed, directory: make the directory, with the evidence of it -> verdict
        revive    case (JSON), check that it failed -> case; ValueError if it may not run, or the check is not made
        simplify  case, whether another one fails alike, seconds: look for the smallest one so long
        """
        self._strategy, self._describe, self._judge, self._keep = strategy, describe, judge, keep
        self._revive, self._simplify = revive, simplify
        try:
            self._try_known()
            while unit := self._board.claim(self._name):
                self._generate(unit)
                self._board.done(unit)
                self._search(share=SEARCH_SHARE)
        except Stop:
            pass
        try:
            while self._discoveries:
                self._stop_if_due(SEARCH)
                self._search(share=1.0)
                time.sleep(0.1)  # another worker searches for the same check
        except Stop:
            pass
        self._journal.write("ended")

    def _try_known(self) -> None:
        """Run the cases that failed in earlier runs, if no other worker does. They are no part of what is generated:
        the same seed gives the same cases, whatever is known."""
        with locked(self._run.journals / "known.lock", wait=False) as mine:
            if not mine or (self._run.journals / "known").exists():
                return
            (self._run.journals / "known").touch()
            limit = time.monotonic() + self._search_limit()
            for check, value in self._recall.known():
                if time.monotonic() > limit:
                    return
                try:
                    case = self._revive(value, check)
                except ValueError:
                    continue  # of another version, or for another contract
                errors = self._errors
                failing = self._keep_evidence(case, check).failing.get(check)
                if failing is not None:
                    self.failing.setdefault(check, failing)
                    self._tell_shrunk(failing, failing)
                elif self._errors == errors:
                    self._recall.forget(check, value)

    def _search_limit(self) -> float:
        """Seconds that a search may take."""
        return min(SEARCH_SECONDS, (self._run.options.max_time or float("inf")) / 4)

    def _tell_shrunk(self, smallest: Failing, discovered: Failing) -> None:
        began_with = sorted(discovered.traits)
        self._found.write("shrunk", worker=self._name, began_with=began_with, **smallest.to_json())

    def _generate(self, unit: Unit) -> None:
        """Do a unit. A new failure is searched first; then the unit is done again up to there, without the kernel."""
        history = self._left_by(unit)
        while True:
            try:
                self._go_on(unit, history)
            except Interlude:
                self._search(share=SEARCH_SHARE)
            else:
                return

    def _go_on(self, unit: Unit, history: list[Outcome]) -> None:
        """Do a unit of whose first cases the outcomes are known."""
        ahead = iter(history[:])
        outcomes: Outcomes = {}

        def body(case: Any) -> None:
            event = self._describe(case)
            outcome = next(ahead, None)
            if outcome is None:
                if self._news:
                    raise Interlude
                self._stop_if_due(GENERATE)
                outcome = self._execute(event, unit, GENERATE, lambda: self._judge(case, frozenset()))
                history.append(outcome)
            outcomes.setdefault(_key(event["case"]), outcome)
            _guide(outcome)
            self._note(outcome, unit, outcomes)

        explore(self._strategy, seed_of(self._run.seed, unit.number), unit.cases, body, shrink=False)

    def _note(self, outcome: Outcome, unit: Unit, outcomes: Outcomes) -> None:
        """Keep what is new of the failures of a case, to be searched."""
        for failing in outcome.failing.values():
            self.failing.setdefault(failing.check, failing)
            if (failing.kind, failing.traits) not in self._kinds:
                self._kinds.add((failing.kind, failing.traits))
                self._discoveries.append(Discovery(unit, outcomes, failing))
                self._news = True

    def _left_by(self, unit: Unit) -> list[Outcome]:
        """What dead workers had found in a unit. A case that one was in is not run again: that killed it,
        unless the worker was lost for another reason."""
        left: list[Outcome] = []
        for worker in unit.died:
            case: Event | None = None
            for event, _ in read(self._run.journals / f"{worker}.jsonl"):
                if event["event"] == "case":
                    case = event if (event["unit"], event["phase"]) == (unit.number, GENERATE) else None
                    if case is not None:
                        left.append(Outcome({}, {}))
                elif event["event"] == "verdict" and case is not None:
                    left[-1] = Outcome.of(case, event["ran"], event["findings"])
                    case = None
                elif event["event"] == "lost" and case is not None:
                    left.pop()
        return left

    def _execute(self, event: Event, unit: Unit | None, phase: str, judge: Callable[[], Verdict]) -> Outcome:
        """Judge a case, with a line in the journal before and after."""
        start = time.monotonic()
        number_of_unit = None if unit is None else unit.number
        self._journal.write("case", unit=number_of_unit, phase=phase, at=round(start - self._run.started, 3), **event)
        try:
            verdict = judge()
            ran, findings = verdict.ran, [finding_json(finding) for finding in verdict.findings]
        except Exception:
            # not the kernel's failure: the judge turns those into findings
            self._journal.write("error", usage=False, message=traceback.format_exc())
            self._errors += 1
            if self._errors >= MAX_ERRORS:
                raise Stop from None
            ran, findings = {}, []
        seconds = time.monotonic() - start
        self._journal.write("verdict", ran=ran, findings=findings, ms=round(1000 * seconds, 2))
        self._usual = 0.8 * self._usual + 0.2 * seconds
        return Outcome.of(event, strict(ran), strict(findings))

    def _stop_if_due(self, phase: str) -> None:
        """Raise Stop before a case that should not run any more."""
        now = time.monotonic() + self._usual
        run = self._run
        if run.deadline is not None and now > run.deadline - self._reserve:
            raise Stop
        if run.patience is not None and now > self._began + run.patience:
            raise Stop
        if os.getppid() != self._parent:
            raise Stop  # the controlling process is gone
        if (wanted := run.stop_wanted()) is not None and (wanted == "now" or phase == GENERATE):
            raise Stop

    def _search(self, share: float) -> None:
        """Search for the smallest case of each discovery that nothing explains yet, within a share of the time."""
        self._news = False
        waiting, self._discoveries = self._discoveries, []
        for discovery in waiting:
            check = discovery.failing.check
            self._known.update()
            if self._known.explained(discovery.failing):
                continue
            now = time.monotonic()
            if self._searching > share * (now - self._began):
                self._discoveries.append(discovery)
                continue
            with locked(self._run.journals / f"{check}.lock", wait=False) as mine:
                if not mine:
                    self._discoveries.append(discovery)
                    continue
                smallest = self._smallest(discovery)
                self._tell_shrunk(smallest, discovery.failing)
                self._recall.remember(check, smallest.case)
            self._keep_evidence(self._revive(smallest.case, check), check)
            self._searching += time.monotonic() - now

    def _keep_evidence(self, case: Any, check: str) -> Outcome:
        """Run a case that failed a check once more, and keep what the kernel did."""
        self._stop_if_due(SEARCH)
        event = self._describe(case)
        place = self._run.evidence / evidence_name(check, event["case"])
        return self._execute(event, None, SEARCH, lambda: self._keep(case, check, place))

    def _smallest(self, discovery: Discovery) -> Failing:
        """Come to the failing case again without the kernel, then let Hypothesis shrink it: while the same check fails,
        and not in a way that is explained already. Choices that depend on earlier ones keep it from the smallest case,
        so the case itself is made smaller in the end."""
        unit, outcomes, check = discovery.unit, dict(discovery.outcomes), discovery.failing.check
        smallest = discovery.failing
        found = False
        limit = time.monotonic() + self._search_limit()

        def body(case: Any) -> None:
            nonlocal smallest, found
            event = self._describe(case)
            key = _key(event["case"])
            if key not in outcomes:
                if not found or time.monotonic() > limit:
                    raise SearchEnded
                self._stop_if_due(SEARCH)
                outcomes[key] = self._execute(event, unit, SEARCH, lambda: self._judge(case, frozenset({check})))
            outcome = outcomes[key]
            _guide(outcome)
            found = found or key == _key(discovery.failing.case)
            failing = self._alike(outcome, discovery)
            if not found or failing is None:
                return
            smallest = min(smallest, failing, key=lambda one: one.size)
            raise failure_of(check)

        try:
            explore(self._strategy, seed_of(self._run.seed, unit.number), unit.cases, body, shrink=True)
        except (SearchEnded, failure_of(check)):
            pass
        return self._simplest(discovery, smallest, limit)

    def _simplest(self, discovery: Discovery, smallest: Failing, limit: float) -> Failing:
        """Make a failing case of a discovery smaller, field by field, as far as it goes until the time `limit`."""
        check = discovery.failing.check

        def fails(case: Any) -> bool:
            nonlocal smallest
            self._stop_if_due(SEARCH)
            event = self._describe(case)
            outcome = self._execute(event, discovery.unit, SEARCH, lambda: self._judge(case, frozenset({check})))
            failing = self._alike(outcome, discovery)
            smallest = failing or smallest
            return failing is not None

        with contextlib.suppress(Stop):  # what it has come to is worth keeping
            self._simplify(self._revive(smallest.case, check), fails, limit - time.monotonic())
        return smallest

    def _alike(self, outcome: Outcome, discovery: Discovery) -> Failing | None:
        """The failure of a case that fails as a discovery does; None where that is another failure, and a known one:
        a search must not slip into it."""
        failing = outcome.failing.get(discovery.failing.check)
        if failing is None or failing.kind != discovery.failing.kind:
            return None
        return None if failing.traits != discovery.failing.traits and self._known.explained(failing) else failing


def finding_json(finding: Finding) -> Event:
    """A finding as a journal keeps it: its fields, and its text."""
    return dataclasses.asdict(finding) | {"message": str(finding)}


@cache
def failure_of(check: str) -> type[AssertionError]:
    """An exception class for each check: Hypothesis tells failures apart by class and place, and never shrinks one into
    another."""
    return type(f"{check.title().replace('-', '')}Failed", (AssertionError,), {})


def _guide(outcome: Outcome) -> None:
    """Lead Hypothesis to cases that come closer to their bounds."""
    for check, ratio in outcome.ratios.items():
        hypothesis.target(ratio, label=check)


def _key(case: Event) -> str:
    return json.dumps(strict(case), sort_keys=True)
