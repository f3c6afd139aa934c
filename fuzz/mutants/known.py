"""Outcomes of an earlier run that was interrupted: a line in a journal for each, under what it depends on."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fuzz.describe import versions
from fuzz.journal import Journal, read
from fuzz.mutants.mutant import CONTROL, KILLED, SURVIVED, Planted
from fuzz.mutants.package import kernel_sources
from fuzz.mutants.runner import Outcome, Passed
from fuzz.mutants.selftest import ROOT, repository_sources

NAME = "outcomes"
_OUTCOME = "outcome"


class Known:
    """The outcomes in a directory.

    resume  whether those of earlier runs count; else they are forgotten
    about   what an outcome depends on besides all sources and the versions of packages
    """

    def __init__(self, directory: Path, resume: bool, *about: object) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{NAME}.jsonl"
        if not resume:
            path.unlink(missing_ok=True)
        tests = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "tests").glob("*.py"))}
        self._about = _digest([kernel_sources(), repository_sources(), tests, versions(), [*map(str, about)]])
        self._found = {event["key"]: event for event, _ in read(path)} if path.exists() else {}
        self._journal = Journal(directory, NAME)

    def outcome_of(self, planted: Planted) -> Outcome | None:
        """What became of a mutant in an earlier run on the same sources and cases, if it was tried."""
        event = self._found.get(self._key(planted))
        return None if event is None else _restored(planted, event["facts"])

    def keep(self, outcome: Outcome) -> None:
        """Have later runs know an outcome; an original that did not survive is tried again."""
        key = self._key(outcome.planted)
        states = (SURVIVED,) if outcome.planted.group == CONTROL else (KILLED, SURVIVED)
        if outcome.state in states and key not in self._found:
            self._journal.write(_OUTCOME, key=key, name=outcome.planted.name, facts=_plain(outcome))

    def _key(self, planted: Planted) -> str:
        return _digest([self._about, planted.name, planted.changed, planted.tests])


def _digest(value: Any) -> str:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def _plain(outcome: Outcome) -> dict[str, Any]:
    facts = {field.name: getattr(outcome, field.name) for field in fields(outcome) if field.name != "planted"}
    passed = {number: asdict(one) | {"places": sorted(one.places)} for number, one in outcome.passed.items()}
    return facts | {"passed": passed}


def _restored(planted: Planted, facts: dict[str, Any]) -> Outcome:
    passed = {
        int(number): Passed(one["seconds"], frozenset(map(tuple, one["places"])))
        for number, one in facts["passed"].items()
    }
    return Outcome(planted, **facts | {"passed": passed, "checks": (*facts["checks"],), "traits": (*facts["traits"],)})
