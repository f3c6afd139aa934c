"""What one worker process does: it claims units, runs their cases, and searches a smaller case for each new failure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn

import pytest

from fuzz.buckets import Failing
from fuzz.execution import Execution, Outcome, Outcomes, Stop, key_of
from fuzz.journal import Event, Journal, read
from fuzz.options import UsageError
from fuzz.run import Run
from fuzz.searches import Searches
from fuzz.totals import GENERATE, SEARCH
from fuzz.units import Board, Unit, explore, seed_of

if TYPE_CHECKING:
    from fuzz.case import Case
    from fuzz.property import Property

# The part of a worker's time that searches may take while there are units left.
SEARCH_SHARE = 0.5


class Interlude(BaseException):
    """Leaves a unit for a search."""


def refuse(run: Run, name: str, error: UsageError) -> NoReturn:
    """End a run that cannot do what was asked, from its worker `name`."""
    Journal(run.journals, name).write("error", usage=True, message=str(error))
    pytest.fail(str(error), pytrace=False)


class Worker:
    """One worker of a run.

    tested      the property that the run explores
    least       seconds that a case takes at least
    by_choices  whether a search begins with the choices from which a case was drawn; else with the case itself
    """

    def __init__(
        self, run: Run, name: str, tested: Property, *, least: float = 0.0, by_choices: bool = True
    ) -> None:
        self._run, self._name, self._tested = run, name, tested
        self._board = Board(run.journals, run.options.max_cases, run.options.shard)
        self._execution = Execution(run, name, least=least)
        self._searches = Searches(run, name, tested, self._execution, by_choices=by_choices)

    @property
    def failing(self) -> dict[str, Failing]:
        """The first failing case of each check that it met."""
        return self._searches.failing

    def tell(self, device: str, versions: dict[str, str]) -> None:
        """Write down what this worker runs on, and all strata."""
        self._execution.journal.write("device", device=device, versions=versions, strata=self._tested.reach)

    def work(self) -> None:
        """Try what earlier runs found, do units until none is left or the run has to stop, then what is left to
        search."""
        searches = self._searches
        try:
            searches.try_known()
            while unit := self._board.claim(self._name):
                self._generate(unit)
                self._board.done(unit)
                searches.search(share=SEARCH_SHARE)
        except Stop:
            pass
        try:
            while searches.waiting:
                self._execution.stop_if_due(SEARCH)
                searches.search(share=1.0)
                time.sleep(0.1)  # another worker searches for the same check
        except Stop:
            pass
        self._execution.journal.write("ended")

    def _generate(self, unit: Unit) -> None:
        """Do a unit. A new failure is searched first; then the unit is done again up to there, without the kernel."""
        history = self._left_by(unit)
        while True:
            try:
                self._go_on(unit, history)
            except Interlude:
                self._searches.search(share=SEARCH_SHARE)
            else:
                return

    def _go_on(self, unit: Unit, history: list[Outcome]) -> None:
        """Do a unit of whose first cases the outcomes are known."""
        ahead = iter(history[:])
        outcomes: Outcomes = {}

        def body(case: Case) -> None:
            event = self._tested.describe(case)
            outcome = next(ahead, None)
            if outcome is None:
                if self._searches.news:
                    raise Interlude
                self._execution.stop_if_due(GENERATE)
                outcome = self._execution.execute(
                    event, unit, GENERATE, lambda: self._tested.judge(case, frozenset())
                )
                history.append(outcome)
            outcomes.setdefault(key_of(event["case"]), outcome)
            outcome.guide()
            self._searches.note(outcome, unit, outcomes)

        explore(self._tested.strategy, seed_of(self._run.seed, unit.number), unit.cases, body, shrink=False)

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
