"""What a run of mutants found: lines while it goes on, then JSON and Markdown."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from fuzz.describe import device_name, versions
from fuzz.journal import write_json, write_text
from fuzz.mutants.mutant import BROKEN, GROUPS, JUDGE, KILLED, SURVIVED
from fuzz.mutants.runner import EQUIVALENT, LEFT, Outcome

SCHEMA = 1
_FOUND = (KILLED, SURVIVED)


class Report:
    """Outcomes as they come, and what they add up to."""

    def __init__(self, device: str, seed: int, cases: int) -> None:
        self.outcomes: list[Outcome] = []
        self._device, self._versions = device_name(device), versions()
        self._seed, self._cases = seed, cases

    @property
    def exit_status(self) -> int:
        states = {outcome.state for outcome in self.outcomes}
        if SURVIVED in states:
            return 1
        return 2 if states & {LEFT, BROKEN} or not self.outcomes else 0

    def write(self, directory: Path, elapsed: float) -> None:
        """mutants.json and mutants.md."""
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / "mutants.json", self.to_json(elapsed))
        write_text(directory / "mutants.md", self.markdown(elapsed))

    def to_json(self, elapsed: float) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "date": date.today().isoformat(),
            "machine": platform.machine(),
            "device": self._device,
            "versions": self._versions,
            "seed": self._seed,
            "cases": self._cases,
            "elapsed_s": round(elapsed, 1),
            "groups": {group: dict(Counter(one.state for one in self._of(group))) for group in GROUPS},
            "mutants": [_plain(outcome) for outcome in self._sorted()],
            "exit_status": self.exit_status,
        }

    def markdown(self, elapsed: float) -> str:
        """A line for each group, then tables of mutants: the named ones, the judge's, generated ones that survived."""
        versions = ", ".join(f"{name} {version}" for name, version in self._versions.items())
        parts = [
            f"{date.today().isoformat()}, {self._device}, {versions}; seed {self._seed}, "
            f"at most {self._cases} cases for a mutant; {elapsed / 60:.0f} min.",
            _table(["mutants", KILLED, SURVIVED, EQUIVALENT, "others"], [self._counts(group) for group in GROUPS]),
        ]
        for group in GROUPS:
            rows = [_row(one) for one in self._sorted() if one.planted.group == group]
            if group == "generated":
                rows = [row for row in rows if row[1] != KILLED]
            if rows:
                heads = ["mutant", "", "fault", "seen in", "check", "cases", "seconds", "strata of the smallest case"]
                parts.append(_table([f"{group} {heads[0]}", *heads[1:]], rows))
        return "\n\n".join(parts) + "\n"

    def summary(self) -> str:
        """How many of each group ended how, in one line."""
        parts = []
        for group in GROUPS:
            states = Counter(one.state for one in self._of(group))
            if states:
                parts.append(f"{group}: {', '.join(f'{count} {state}' for state, count in states.items())}")
        return "; ".join(parts)

    def _counts(self, group: str) -> list[str]:
        states = Counter(one.state for one in self._of(group))
        others = sum(states.values()) - sum(states[state] for state in (*_FOUND, EQUIVALENT))
        return [group, *(str(states[state]) for state in (*_FOUND, EQUIVALENT)), str(others)]

    def _of(self, group: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.planted.group == group]

    def _sorted(self) -> Iterable[Outcome]:
        return sorted(self.outcomes, key=lambda one: (GROUPS.index(one.planted.group), one.planted.name))


def line(outcome: Outcome) -> str:
    """An outcome while the run goes on."""
    what = f"{outcome.state:10} {outcome.planted.name}"
    if outcome.state == KILLED:
        after = f"{outcome.cases} cases, " if outcome.cases else ""
        return f"{what}: {', '.join(outcome.checks)} after {after}{outcome.seconds:.1f} s"
    return f"{what}: {outcome.message.strip().splitlines()[-1]}" if outcome.message else what


def _plain(outcome: Outcome) -> dict[str, Any]:
    planted = outcome.planted
    about = {"name": planted.name, "group": planted.group, "fault": planted.fault, "bug": planted.bug}
    facts = asdict(outcome)
    del facts["planted"]
    return about | facts


def _row(outcome: Outcome) -> list[str]:
    planted = outcome.planted
    if outcome.state != KILLED:
        return [planted.name, outcome.state, planted.fault, planted.bug, outcome.message, "", "", ""]
    cases = "" if planted.group == JUDGE else str(outcome.cases)
    check = outcome.message if planted.group == JUDGE else ", ".join(outcome.checks)
    strata = ", ".join(name for name in outcome.traits if not name.startswith("lengths:")) or "-"
    return [planted.name, KILLED, planted.fault, planted.bug, check, cases, f"{outcome.seconds:.0f}", strata]


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)
