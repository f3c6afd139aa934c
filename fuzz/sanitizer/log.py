"""What compute-sanitizer wrote into its log.

    ========= Invalid __global__ read of size 4 bytes
    =========     at attend+0x1d80 in attend.py:93
    =========     by thread (0,0,0) in block (0,0,0)
    =========     Address 0x7f3c7ec000fc is out of bounds

An entry begins at the margin, what belongs to it is indented. At the end stands a summary; without one the tool did not
come to its end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PREFIX = re.compile(r"^=========(?: |$)")
_SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY: (\d+)")
# First lines of errors -> what kind of error it is; the parts of a match are joined to its name.
_KINDS = (
    (re.compile(r"Invalid __(\w+?)__ (\w+)"), ""),
    (re.compile(r"(?:Error: |Warning: )?Race reported"), "race"),
    (re.compile(r"(?:Error: |Warning: ).*\b(RAW|WAR|WAW) hazard"), "hazard"),
    (re.compile(r"Uninitialized __(\w+?)__ memory read"), "uninitialized"),
    (re.compile(r"Uninitialized access|Host API uninitialized memory access"), "uninitialized-copy"),
    (re.compile(r"Barrier error"), "barrier"),
    (re.compile(r"Malloc/Free error"), "heap"),
)
# What is said of the process, which the judge sees for itself, and of the tool.
_OF_THE_PROCESS = re.compile(
    r"COMPUTE-SANITIZER|Target application returned an error|Error: process didn't terminate successfully"
    r"|Error: couldn't find exit code|LEAK SUMMARY"
)
_TROUBLE = re.compile(
    r"(?:Error: )?Target application terminated before|Device not supported|Internal Sanitizer|Internal error"
    r"|Error: No attachable process|Error: Could not connect|Error: Failed to|Unable to|Error launching"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One error: its kind in a word or two, and what the log says of it, line by line."""

    kind: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.lines)


@dataclass(frozen=True, slots=True)
class Report:
    """What one process did.

    entries   the errors that are told
    count     how many there are, by the summary
    trouble   why the tool could not do its work; empty if it could
    """

    entries: tuple[Entry, ...]
    count: int
    trouble: str


def parse(text: str) -> Report:
    """Read a log. Whatever is neither an error that is known nor about the process or the tool is an error too."""
    entries: list[Entry] = []
    trouble, count, is_complete = "", 0, False
    for lines in _paragraphs(text):
        if summary := _SUMMARY.match(lines[0]):
            is_complete = True
            count += int(summary[2])
        elif _TROUBLE.match(lines[0]):
            trouble = trouble or " ".join(lines)
        elif not _OF_THE_PROCESS.match(lines[0]):
            entries.append(Entry(_kind(lines[0]), tuple(lines)))
    if not is_complete and not trouble:
        trouble = "it ended without a summary"
    return Report(tuple(entries), max(count, len(entries)), trouble)


def _paragraphs(text: str) -> list[list[str]]:
    """Each entry as its lines, without prefix and margin."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if not _PREFIX.match(line):
            continue  # what the process printed, where there is no log of its own
        content = line[len("========= ") :]
        if not content.strip():
            continue
        if content[0] == " " and found:
            found[-1].append(content.strip())
        else:
            found.append([content.strip()])
    return found


def _kind(line: str) -> str:
    for pattern, name in _KINDS:
        if match := pattern.match(line):
            return "-".join([*filter(None, [name]), *(part.lower() for part in match.groups())])
    return "other"
