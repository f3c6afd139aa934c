"""What `python -m fuzz mutants` runs, once the environment is set."""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from fuzz.case import Case
from fuzz.describe import device_name
from fuzz.mutants.collect import FOR_HOPPER, collect
from fuzz.mutants.known import Known
from fuzz.mutants.mutant import CONTROL, EMULATED, FROM_SYNTAX, GROUPS, JUDGE, SURVIVED, Planted
from fuzz.mutants.package import kernel_sources
from fuzz.mutants.reach import marked, places
from fuzz.mutants.report import Report, RulesReport, line
from fuzz.mutants.rivals import draw_trials, judge_by_rules
from fuzz.mutants.runner import Outcome, Work, draw_cases, in_child, run_all
from fuzz.mutants.selftest import patience, run_tests
from fuzz.mutants.trial import Budget, attack, warm_up


def fuzzed(parsed: argparse.Namespace, device: str, workers: int, began: float) -> Report:
    """The mutants that were asked for, by the fuzzer and by our own tests."""
    mutants = collect(GROUPS if parsed.only else parsed.groups, parsed.only, parsed.sample)
    in_kernel = any(not planted.tests for planted in mutants)
    cases = draw_cases(parsed.seed, parsed.max_cases, device, parsed.strata) if in_kernel else []
    budget = Budget.of(device, len(cases))
    controls: dict[bool, Outcome] = {}  # whether for Hopper

    def work(planted: Planted) -> Work:
        if planted.tests:
            return Work(run_tests, (planted.changed, planted.tests), patience(planted.tests))
        # Of generated ones the tables show survivors alone.
        limits = replace(budget, shrink_seconds=0) if planted.group in FROM_SYNTAX else budget
        control = controls[planted.group in EMULATED]
        arguments = (planted.changed, cases, _turns(planted, control, cases, device), device, workers, limits)
        return Work(attack, arguments, budget.case_seconds + budget.shrink_seconds)

    about = {"strata": ",".join(parsed.strata)} if parsed.strata else {}
    report = Report(in_child(device_name, device), began, seed=parsed.seed, cases=len(cases), **about)
    run = _Run(report, parsed, Known(parsed.out, parsed.resume, device, *cases), device, workers, began)
    if in_kernel:
        if device == "cpu":
            warm_up()
        for unchanged in [one for one in mutants if one.group == CONTROL and not one.tests]:
            mutants.remove(unchanged)
            if unchanged.name == FOR_HOPPER and device == "cuda":
                continue  # its mutants are left out there
            control = run.known.outcome_of(unchanged) or _survey(unchanged, cases, budget, run)
            run.tell(control)
            if control.state != SURVIVED:
                return report
            controls[unchanged.name == FOR_HOPPER] = control
    run.all_of(mutants, work)
    return report


def judged_by_rules(parsed: argparse.Namespace, device: str, workers: int, began: float) -> Report:
    """The mutants of the kernel that were asked for, by the rules of published suites."""
    groups = [group for group in (GROUPS if parsed.only else parsed.groups) if group not in (*EMULATED, JUDGE)]
    mutants = collect(groups, parsed.only, parsed.sample)
    trials, seconds = draw_trials(), Budget.of(device, 0).case_seconds * 2
    report = RulesReport(in_child(device_name, device), began)
    run = _Run(report, parsed, Known(parsed.out, parsed.resume, device, "rules"), device, workers, began)
    run.all_of(mutants, lambda planted: Work(judge_by_rules, (planted.changed, trials), seconds))
    return report


class _Run:
    """Outcomes are told as they come, and known to a later run: one that is killed leaves what it had found."""

    def __init__(
        self, report: Report, parsed: argparse.Namespace, known: Known, device: str, workers: int, began: float
    ) -> None:
        self.known, self.device, self.workers = known, device, workers
        self.deadline = began + parsed.max_time if parsed.max_time else math.inf
        self._report, self._out = report, parsed.out

    def tell(self, outcome: Outcome) -> None:
        self._report.outcomes.append(outcome)
        self._report.write(self._out)
        self.known.keep(outcome)
        print(line(outcome), flush=True)

    def all_of(self, mutants: Sequence[Planted], work: Callable[[Planted], Work]) -> None:
        """Tell what is known, then try the others."""
        left = []
        for planted in mutants:
            if (outcome := self.known.outcome_of(planted)) is None:
                left.append(planted)
            else:
                self.tell(outcome)
        for outcome in run_all(left, work, self.device, self.workers, self.deadline):
            self.tell(outcome)


def _survey(unchanged: Planted, cases: Sequence[Case], budget: Budget, run: _Run) -> Outcome:
    """The unchanged kernel on all cases, which it must pass, each worker doing a share; it is marked where the
    interpreter runs it."""
    print(f"{unchanged.name} first, on {len(cases)} cases", file=sys.stderr, flush=True)
    changed = {} if run.device == "cuda" else unchanged.changed | marked(kernel_sources() | unchanged.changed)
    shares = [range(first + 1, len(cases) + 1, run.workers) for first in range(run.workers)]
    waiting = iter(shares)

    def work(planted: Planted) -> Work:
        arguments = (planted.changed, cases, next(waiting), run.device, run.workers, budget)
        return Work(attack, arguments, budget.case_seconds)

    watched = [replace(unchanged, changed=changed)] * len(shares)
    outcomes = list(run_all(watched, work, run.device, run.workers, run.deadline))
    for outcome in outcomes:
        if outcome.state != SURVIVED:
            return replace(outcome, planted=unchanged)
    passed = {number: seen for outcome in outcomes for number, seen in outcome.passed.items()}
    seconds = sum(outcome.seconds for outcome in outcomes)
    message = f"{len(passed)} of {len(cases)} cases tried"
    return Outcome(unchanged, SURVIVED, seconds=seconds, message=message, passed=passed)


def _turns(planted: Planted, control: Outcome, cases: Sequence[Case], device: str) -> list[int]:
    """Numbers of the cases that can show a mutant.

    Those that take least come first: whichever fails, a run that draws them in order has failed by then. On a GPU,
    where compiling takes most, cases of one variant of the kernel follow each other, those of the commonest first.
    """
    numbers = range(1, len(cases) + 1)
    if device == "cuda":
        variants = [(case.dtype, case.index_dtype, case.layout) for case in cases]
        often = Counter(variants)
        return sorted(numbers, key=lambda number: (-often[variants[number - 1]], variants[number - 1], number))
    passed = control.passed
    where = places(planted.changed, kernel_sources() | control.planted.changed)

    def may_show(number: int) -> bool:
        return where is None or number not in passed or not where.isdisjoint(passed[number].places)

    def cost(number: int) -> float:
        return passed[number].seconds if number in passed else math.inf

    return sorted(filter(may_show, numbers), key=cost)
