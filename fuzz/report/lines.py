"""Line coverage of the kernel under test, where the run was started under coverage.py (docs/nightly.md says how)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fuzz.words import spans

NAME = "coverage.json"


@dataclass(frozen=True, slots=True)
class FileLines:
    """Statements of a file, how many of them ran, and the lines of those that did not, as '3, 7-9'."""

    name: str
    statements: int
    covered: int
    missing: str


def file_lines(directory: Path) -> list[FileLines]:
    """What coverage.json in the directory of a run, written by coverage.py, says of each file; nothing if it is absent
    or cannot be read."""
    try:
        files = json.loads((directory / NAME).read_text())["files"]
        return [
            FileLines(
                name,
                entry["summary"]["num_statements"],
                entry["summary"]["covered_lines"],
                spans(entry["missing_lines"]),
            )
            for name, entry in sorted(files.items())
            if entry["summary"]["num_statements"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
