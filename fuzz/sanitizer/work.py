"""A worker of a run whose cases are judged in batches, under compute-sanitizer."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from fuzz.case import Case
from fuzz.checks import Verdict
from fuzz.options import UsageError
from fuzz.run import Run
from fuzz.sanitizer.outside import Sanitized
from fuzz.totals import GENERATE, Failing
from fuzz.units import Unit, explore, seed_of
from fuzz.worker import Discovery, Stop, Worker

_LEAST = 8.0  # seconds that a process takes at least, until the verdict on its first case


class SanitizedWorker(Worker):
    """One worker of such a run. The cases of a unit are drawn at once, as nothing guides them, and judged a batch at a
    time. A smaller case is looked for in the case itself: each try takes a process, and so seconds."""

    def __init__(self, run: Run, name: str, rig: Sanitized) -> None:
        super().__init__(run, name)
        self._rig = rig

    def work(self, *parts: Any) -> None:
        try:
            super().work(*parts)
        finally:
            for where, times in Counter(self._rig.aside).items():
                self._warn(
                    f"{self._name}: {self._rig.tool} reported the hand-over of warp_specialize {times} times,"
                    f" which is no race ({where}); docs/sanitizers.md says why"
                )

    def _generate(self, unit: Unit) -> None:
        drawn: list[Case] = []
        explore(self._strategy, seed_of(self._run.seed, unit.number), unit.cases, drawn.append, shrink=False)
        waiting = drawn[len(self._left_by(unit)) :]
        while waiting:
            self._stop_if_due(GENERATE)
            verdicts = self._batch(waiting)
            for case, verdict in zip(waiting, verdicts, strict=False):
                self._note(self._execute(self._describe(case), unit, GENERATE, partial(_the, verdict)), unit, {})
            waiting = waiting[len(verdicts) :]

    def _batch(self, cases: Sequence[Case]) -> list[Verdict]:
        run = self._run
        try:
            return self._rig.batch(cases, float("inf") if run.deadline is None else run.deadline - self._reserve)
        except UsageError as error:
            self.refuse(error)
        except Exception:
            self._journal.write("error", usage=False, message=traceback.format_exc())
            raise Stop from None

    def _smallest(self, discovery: Discovery) -> Failing:
        return self._simplest(discovery, discovery.failing, time.monotonic() + self._search_limit())

    def _stop_if_due(self, phase: str) -> None:
        self._usual = max(self._usual, _LEAST)
        super()._stop_if_due(phase)


def _the(verdict: Verdict) -> Verdict:
    return verdict
