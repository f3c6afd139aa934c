"""The same mutants as published suites would judge them: their rules, on inputs drawn as they draw theirs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzz.checks.results import KernelRaised, call
from fuzz.journal import Journal
from fuzz.mutants.edit import Sources
from fuzz.mutants.mutant import KILLED, SURVIVED
from fuzz.mutants.package import load_mutant
from fuzz.options import UsageError
from fuzz.rules.inputs import SUITES
from fuzz.rules.published import RULES
from fuzz.rules.table import Golden, compare, golden_of
from kernel.contract import Inputs

ALL = tuple(rule.name for rule in RULES)


@dataclass(frozen=True, slots=True)
class Trial:
    """An input set with what its results are compared with."""

    name: str
    inputs: Inputs
    golden: Golden


def draw_trials() -> list[Trial]:
    """The suites' input sets. They are drawn and computed on the CPU, the same for every mutant."""
    trials = []
    for suite in SUITES:
        inputs = suite.make()
        trials.append(Trial(suite.name, inputs, golden_of(inputs, suite.bell)))
    return trials


def judge_by_rules(changed: Sources, trials: Sequence[Trial], journal: Journal) -> None:
    """Write which rules reject a mutant on their own inputs. One that cannot run at all is rejected by everyone."""
    torch.set_num_threads(1)
    start = time.monotonic()
    rejecting: dict[str, None] = {}
    with tempfile.TemporaryDirectory() as directory:
        try:
            target = load_mutant(changed, Path(directory))
            for trial in trials:
                comparison = compare(call(target, trial.inputs, None), trial.golden)
                for rule in RULES:
                    if trial.name in rule.inputs and not rule.accepts(comparison):
                        rejecting[rule.name] = None
        except (UsageError, KernelRaised):
            rejecting = dict.fromkeys(ALL)
    seconds = time.monotonic() - start
    if rejecting:
        checks = [name for name in ALL if name in rejecting]
        journal.write(KILLED, seconds=seconds, checks=checks, traits=[], message="")
    else:
        journal.write(SURVIVED, seconds=seconds)
