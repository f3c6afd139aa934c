"""A worker of a run whose cases are judged in batches, under compute-sanitizer."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fuzz.case import Case
from fuzz.checks import Verdict
from fuzz.execution import Stop
from fuzz.options import UsageError
from fuzz.run import Run
from fuzz.sanitizer.outside import Sanitized
from fuzz.totals import GENERATE
from fuzz.units import Unit, explore, seed_of
from fuzz.worker import Worker, refuse

if TYPE_CHECKING:
    from fuzz.property import Property

_LEAST = 8.0  # seconds that a process takes at least, until the verdict on its first case


class SanitizedWorker(Worker):
    """One worker of such a run. The cases of a unit are drawn at once, as nothing guides them, and judged a batch at a
    time. A smaller case is looked for in the case itself: each try takes a process, and so seconds."""

    def __init__(self, run: Run, name: str, tested: Property, rig: Sanitized) -> None:
        super().__init__(run, name, tested, least=_LEAST, by_choices=False)
        self._rig = rig

    def work(self) -> None:
        try:
            super().work()
        finally:
            for where, times in Counter(self._rig.aside).items():
                message = (
                    f"{self._name}: {self._rig.tool} reported {times} times what warpgroups hand each other in an order"
                    f" that it does not see ({where}), which is no failure; docs/sanitizers.md says why"
                )
                self._execution.journal.write("warning", message=message)

    def _generate(self, unit: Unit) -> None:
        drawn: list[Case] = []
        explore(self._tested.strategy, seed_of(self._run.seed, unit.number), unit.cases, drawn.append, shrink=False)
        waiting = drawn[len(self._left_by(unit)) :]
        while waiting:
            self._execution.stop_if_due(GENERATE)
            verdicts = self._batch(waiting)
            for case, verdict in zip(waiting, verdicts, strict=False):
                event = self._tested.describe(case)
                self._searches.note(self._execution.execute(event, unit, GENERATE, partial(_the, verdict)), unit, {})
            waiting = waiting[len(verdicts) :]

    def _batch(self, cases: Sequence[Case]) -> list[Verdict]:
        deadline = self._run.deadline
        try:
            return self._rig.batch(cases, float("inf") if deadline is None else deadline - self._execution.reserve)
        except UsageError as error:
            refuse(self._run, self._name, error)
        except Exception:
            self._execution.journal.write("error", usage=False, message=traceback.format_exc())
            raise Stop from None


def _the(verdict: Verdict) -> Verdict:
    return verdict
