"""What `python -m fuzz mutants` runs, once the environment is set."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from fuzz.describe import device_name
from fuzz.mutants.collect import collect
from fuzz.mutants.mutant import GROUPS, JUDGE, Planted
from fuzz.mutants.report import Report, RulesReport, line
from fuzz.mutants.rivals import draw_trials, judge_by_rules
from fuzz.mutants.runner import Work, draw_cases, in_child, run_all
from fuzz.mutants.selftest import SECONDS, run_tests
from fuzz.mutants.trial import Budget, attack


def fuzzed(parsed: argparse.Namespace, device: str, workers: int, began: float) -> Report:
    """The mutants that were asked for, by the fuzzer and by our own tests."""
    mutants = collect(GROUPS if parsed.only else parsed.groups, parsed.only, parsed.sample)
    in_kernel = any(not planted.tests for planted in mutants)
    cases = draw_cases(parsed.seed, parsed.max_cases, device) if in_kernel else []
    budget = Budget.of(device, len(cases))

    def work(planted: Planted) -> Work:
        if planted.tests:
            return Work(run_tests, (planted.changed, planted.tests), 2 * SECONDS)
        arguments = (planted.changed, cases, device, workers, budget)
        return Work(attack, arguments, budget.case_seconds + budget.shrink_seconds)

    report = Report(in_child(device_name, device), began, seed=parsed.seed, cases=len(cases))
    _run(report, mutants, work, parsed, device, workers, began)
    return report


def judged_by_rules(parsed: argparse.Namespace, device: str, workers: int, began: float) -> Report:
    """The mutants of the kernel that were asked for, by the rules of published suites."""
    groups = [group for group in (GROUPS if parsed.only else parsed.groups) if group != JUDGE]
    mutants = collect(groups, parsed.only, parsed.sample)
    trials, seconds = draw_trials(), Budget.of(device, 0).case_seconds * 2
    report = RulesReport(in_child(device_name, device), began)
    _run(
        report,
        mutants,
        lambda planted: Work(judge_by_rules, (planted.changed, trials), seconds),
        parsed,
        device,
        workers,
        began,
    )
    return report


def _run(
    report: Report,
    mutants: list[Planted],
    work: Callable[[Planted], Work],
    parsed: argparse.Namespace,
    device: str,
    workers: int,
    began: float,
) -> None:
    deadline = began + parsed.max_time if parsed.max_time else float("inf")
    for outcome in run_all(mutants, work, device, workers, deadline):
        report.outcomes.append(outcome)
        report.write(parsed.out)  # a run that is killed leaves what it had found
        print(line(outcome), flush=True)
