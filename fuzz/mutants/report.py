"""What a run of mutants found: lines while it goes on, then JSON and Markdown."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from fuzz.describe import versions
from fuzz.files import write_json, write_text
from fuzz.mutants.mutant import BROKEN, CONTROL, FROM_SYNTAX, GROUPS, JUDGE, KILLED, SURVIVED
from fuzz.mutants.rivals import ALL
from fuzz.mutants.runner import EQUIVALENT, LEFT, Outcome

SCHEMA = 1


class Report:
    """Outcomes as they come, and what they add up to.

    device  its name
    about   what else the run depended on
    """

    def __init__(self, device: str, began: float, **about: int | str) -> None:
        self.outcomes: list[Outcome] = []
        self._device, self._began, self._about = device, began, about

    @property
    def exit_status(self) -> int:
        if any(one.state != SURVIVED for one in self._of(CONTROL)):
            return 2
        states = {outcome.state for outcome in self.outcomes if outcome.planted.group != CONTROL}
        if SURVIVED in states:
            return 1
        return 2 if states & {LEFT, BROKEN} or not states else 0

    def write(self, directory: Path) -> None:
        """mutants.json and mutants.md."""
        write_json(directory / "mutants.json", self.to_json())
        write_text(directory / "mutants.md", self.markdown())

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            **self._where_and_when(),
            "groups": {group: dict(self._states(group)) for group in (*GROUPS, CONTROL)},
            "mutants": [_plain(outcome) for outcome in self._sorted()],
            "exit_status": self.exit_status,
        }

    def markdown(self) -> str:
        """A line for each group, then one for each mutant; of the generated ones, for those that were not killed."""
        counts = [[group, *self._counts(group)] for group in GROUPS if self._of(group)]
        parts = [self._heading(), _table(["mutants", KILLED, SURVIVED, EQUIVALENT, "others"], counts)]
        for group in GROUPS:
            rows = [_row(one) for one in self._sorted() if one.planted.group == group]
            if group in FROM_SYNTAX:
                rows = [row for row in rows if row[1] != KILLED]
            if rows:
                heads = [f"{group} mutant", "", "fault", "seen in", "check", "case", "seconds", "strata of that case"]
                parts.append(_table(heads, rows))
        return "\n\n".join(parts) + "\n"

    def summary(self) -> str:
        """How many of each group ended how, in one line."""
        parts = []
        for group in (*GROUPS, CONTROL):
            if states := self._states(group):
                parts.append(f"{group}: {', '.join(f'{count} {state}' for state, count in states.items())}")
        return "; ".join(parts)

    def _where_and_when(self) -> dict[str, Any]:
        return {
            "date": date.today().isoformat(),
            "device": self._device,
            "versions": versions(),
            **self._about,
            "elapsed_s": round(time.monotonic() - self._began, 1),
        }

    def _heading(self) -> str:
        facts = self._where_and_when()
        about = [f"{name} {value}" for name, value in (facts["versions"] | self._about).items()]
        minutes = f"{facts['elapsed_s'] / 60:.0f} min"
        return ", ".join((facts["date"], facts["device"], *about, minutes))

    def _counts(self, group: str) -> list[str]:
        states = self._states(group)
        listed = [states.pop(state, 0) for state in (KILLED, SURVIVED, EQUIVALENT)]
        return [str(count) for count in (*listed, sum(states.values()))]

    def _states(self, group: str) -> Counter[str]:
        return Counter(one.state for one in self._of(group))

    def _of(self, group: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.planted.group == group]

    def _sorted(self) -> list[Outcome]:
        order = (*GROUPS, CONTROL)
        return sorted(self.outcomes, key=lambda one: (order.index(one.planted.group), one.planted.name))


class RulesReport(Report):
    """The same for rules of published suites: each rule's own kills."""

    @property
    def exit_status(self) -> int:
        """Whether all was tried; what a foreign rule lets pass is no failure of ours."""
        tried = [one for one in self.outcomes if one.state in (KILLED, SURVIVED)]
        return 0 if tried and not any(one.state in (LEFT, BROKEN) for one in self.outcomes) else 2

    def write(self, directory: Path) -> None:
        """rules.json and rules.md."""
        write_json(directory / "rules.json", self.to_json())
        write_text(directory / "rules.md", self.markdown())

    def markdown(self) -> str:
        """A line for each rule, then one for each mutant with who rejects it of the four suites closest to ours."""
        tried = [one for one in self.outcomes if one.state in (KILLED, SURVIVED) and one.planted.group != CONTROL]
        rejected = [name for one in self._of(CONTROL) for name in one.checks]
        rows = []
        for name in ALL:
            kills = sum(_rejects(name, one) for one in tried)
            rows.append([name, f"{kills} / {len(tried)}", "rejected" if name in rejected else "accepted"])
        counts = _table(["rule", "killed", "the unchanged kernel"], rows)
        verdicts = [
            [one.planted.name, *("killed" if _rejects(name, one) else "" for name in _CLOSEST)]
            for one in self._sorted()
            if one in tried
        ]
        return f"{self._heading()}\n\n{counts}\n\n{_table(['mutant', *_CLOSEST], verdicts)}\n"


_CLOSEST = ALL[:4]


def _rejects(rule: str, outcome: Outcome) -> bool:
    """Whether a rule rejects a mutant; one whose process dies is rejected by all."""
    return "alive" in outcome.checks or rule in outcome.checks


def line(outcome: Outcome) -> str:
    """An outcome while the run goes on."""
    what = f"{outcome.state:10} {outcome.planted.name}"
    if outcome.state == KILLED:
        case = f" of case {outcome.number}" if outcome.number else ""
        return f"{what}: {', '.join(outcome.checks)}{case} after {outcome.seconds:.1f} s"
    return f"{what}: {outcome.message.strip().splitlines()[-1]}" if outcome.message else what


def _plain(outcome: Outcome) -> dict[str, Any]:
    planted = outcome.planted
    about = {"name": planted.name, "group": planted.group, "fault": planted.fault, "bug": planted.bug}
    return about | {key: value for key, value in asdict(outcome).items() if key not in ("planted", "passed")}


def _row(outcome: Outcome) -> list[str]:
    planted = outcome.planted
    if outcome.state != KILLED:
        return [planted.name, outcome.state, planted.fault, planted.bug, outcome.message, "", "", ""]
    number = "" if planted.group == JUDGE else str(outcome.number)
    check = outcome.message if planted.group == JUDGE else ", ".join(outcome.checks)
    strata = ", ".join(name for name in outcome.traits if not name.startswith("lengths:")) or "-"
    return [planted.name, KILLED, planted.fault, planted.bug, check, number, f"{outcome.seconds:.0f}", strata]


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)
