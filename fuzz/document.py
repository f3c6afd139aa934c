"""Documents with parts that a command writes, each between two marks."""

from __future__ import annotations

from pathlib import Path


def part(document: str, command: str) -> str:
    """What stands between the marks of `command`. Raises ValueError if they are not there."""
    return _split(document, command)[1].strip()


def put(path: Path, command: str, text: str) -> None:
    """Put `text` between the marks of `command`. Raises ValueError if they are not there."""
    before, _, after = _split(path.read_text(), command)
    path.write_text(f"{before}\n\n{text.strip()}\n\n{after}")


def _split(document: str, command: str) -> tuple[str, str, str]:
    """The document up to the first mark, between both, and from the second one on."""
    begin, end = f"<!-- {command} begins -->", f"<!-- {command} ends -->"
    before, found, rest = document.partition(begin)
    inner, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the document has no lines {begin} and {end}")
    return before + begin, inner, end + after
