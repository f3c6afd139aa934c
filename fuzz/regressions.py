"""The regression corpus: cases that failed once, which the test suite replays from then on.

Hypothesis' own database does not last: its entries mean nothing to another version, or after a change of a strategy.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fuzz.files import write_json
from fuzz.options import UsageError
from fuzz.reading import Dump, each_dump, read
from fuzz.rig import Rig

CORPUS = Path("tests/regressions")


def promote(paths: Iterable[Path], corpus: Path = CORPUS) -> int:
    """Add the cases of dumps to the corpus, one JSON file each; returns the exit status, 2 if one could not be."""
    if not corpus.parent.is_dir():
        raise UsageError(f"there is no {corpus.parent}/ here; promote adds to {corpus}/, at the root of a repository")

    def one(dump: Dump) -> int:
        print(_add(dump, corpus))
        return 0

    return each_dump(paths, one)


def recorded(corpus: Path) -> list[Path]:
    """The files of a corpus, none if there is no such directory."""
    return sorted(corpus.glob("*.json"))


def still_fails(path: Path, rig: Rig) -> list[str]:
    """What a kernel does wrong on a case of the corpus, a message each. The contract is the rig's.

    Raises:
        UsageError: the file is no case, or the case needs a promise that the contract lacks.
    """
    dump = read(path)
    return [str(finding) for finding in rig.judge(dump.case, dump.record.check)[0].findings]


def _add(dump: Dump, corpus: Path) -> str:
    """Write a case into the corpus, unless it is there; returns what was done."""
    for path in recorded(corpus):
        known = read(path)
        if known.case == dump.case and known.record.check == dump.record.check:
            return f"{path} has this case already"
    path, number = corpus / f"{dump.record.bucket}.json", 1
    while path.exists():
        number += 1
        path = corpus / f"{dump.record.bucket}-{number}.json"
    write_json(path, {name: value for name, value in dump.record.to_json(path).items() if name != "replay"})
    return f"{path} added"
