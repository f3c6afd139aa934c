"""Cases as one worker runs them: with a line in its journal before and after each, until the run has to stop."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hypothesis

from fuzz.buckets import Failing, telling
from fuzz.files import number, strict
from fuzz.journal import Event, Journal
from fuzz.machine import process_start
from fuzz.run import Run
from fuzz.totals import GENERATE
from fuzz.units import Unit

if TYPE_CHECKING:
    from fuzz.checks import Verdict

# Seconds before the deadline at which a worker stops by itself. A process with torch in it takes a while to end, the
# longer the more it took to start.
LEAST_RESERVE, MOST_RESERVE = 2.0, 8.0
# The checks whose ratio Hypothesis tries to drive up.
GUIDES = ("output", "lse")
# A worker whose judge raises so often has something wrong with it, not with a case.
MAX_ERRORS = 10


class Stop(BaseException):
    """Ends the run. Not an Exception: Hypothesis would take that for a failure of the kernel."""


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

    def guide(self) -> None:
        """Lead Hypothesis to cases that come closer to their bounds."""
        for check, ratio in self.ratios.items():
            hypothesis.target(ratio, label=check)


Outcomes = dict[str, Outcome]  # by the `key_of` the case


def key_of(case: Event) -> str:
    """A case's JSON as a text."""
    return json.dumps(strict(case), sort_keys=True)


class Execution:
    """Runs the cases of one worker.

    least    seconds that a case takes at least
    began    when the worker did
    reserve  seconds before the deadline at which it stops
    errors   how often the judge raised
    """

    def __init__(self, run: Run, name: str, *, least: float = 0.0) -> None:
        self.journal = Journal(run.journals, name)
        self.began = time.monotonic()
        self.reserve = min(max(LEAST_RESERVE, (self.began - process_start()) / 2), MOST_RESERVE)
        self.errors = 0
        self._run = run
        self._parent = os.getppid()
        self._least = self._usual = least

    def execute(self, event: Event, unit: Unit | None, phase: str, judge: Callable[[], Verdict]) -> Outcome:
        """Judge the case that `event` describes. Raises Stop if the judge itself fails too often."""
        start = time.monotonic()
        number_of_unit = None if unit is None else unit.number
        self.journal.write("case", unit=number_of_unit, phase=phase, at=round(start - self._run.started, 3), **event)
        try:
            told = judge().to_json()
        except Exception:
            # not the kernel's failure: the judge turns those into findings
            self.journal.write("error", usage=False, message=traceback.format_exc())
            self.errors += 1
            if self.errors >= MAX_ERRORS:
                raise Stop from None
            told = {"ran": {}, "findings": []}
        seconds = time.monotonic() - start
        self.journal.write("verdict", **told, ms=round(1000 * seconds, 2))
        self._usual = max(self._least, 0.8 * self._usual + 0.2 * seconds)
        return Outcome.of(event, strict(told["ran"]), strict(told["findings"]))

    def stop_if_due(self, phase: str) -> None:
        """Raise Stop before a case that should not run any more."""
        now = time.monotonic() + self._usual
        run = self._run
        if run.deadline is not None and now > run.deadline - self.reserve:
            raise Stop
        if run.patience is not None and now > self.began + run.patience:
            raise Stop
        if os.getppid() != self._parent:
            raise Stop  # the controlling process is gone
        if (wanted := run.stop_wanted()) is not None and (wanted == "now" or phase == GENERATE):
            raise Stop
