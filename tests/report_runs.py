"""Directories of runs for the tests of the report and of merging, written as workers would have written them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from fuzz import outdir
from fuzz.journal import Journal
from fuzz.options import WHOLE, Options, Shard
from fuzz.run import Run
from fuzz.summary import write_results
from fuzz.totals import Totals

CASE = {"lengths": [[1, 2, 65], [3, 0, 64]], "pages": "identity", "values": "bell", "padded_rows": 0, "seed": 7}
STRATA = {"pages:reversed": "", "pages:broken": "needs the promise hardened", "values:bell": "", "values:huge": ""}
FINDING = {
    "check": "output",
    "detail": "3 of 8192 elements are outside the bound",
    "index": [1, 5, 200],
    "got": 1.5,
    "expected": 1.25,
    "allowed": [1.24, 1.26],
    "ratio": 25.0,
    "rows": "interior",
    "message": "output: 3 of 8192 elements are outside the bound, ratio 25",
}


class Written:
    """A run as it is being written."""

    def __init__(self, directory: Path, *, kernel: str = "kernel:run", shard: Shard = WHOLE, began: str = "") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        options = Options(kernel=kernel, seed=3, shard=shard, out=directory)
        self.run = Run(options, 3, "cpu", directory, time.monotonic(), None, None, 1, 1)
        self.run.journals.mkdir()
        outdir.save(self.run, began or "20260102-030405")
        self.journal = Journal(self.run.journals, "gw0")
        self.journal.write("worker", pid=1)
        self.journal.write("device", device="a device", versions={"python": "3.12", "torch": "2.13.0"}, strata=STRATA)
        self._at = 0.0

    def judge(
        self,
        ran: dict[str, Any],
        *findings: dict[str, Any],
        strata: tuple[str, ...] = ("values:bell",),
        seed: int = 7,
    ) -> None:
        """A case and its verdict."""
        self.begin(strata, seed)
        self.journal.write("verdict", ran=ran, findings=list(findings), ms=1.0)

    def begin(self, strata: tuple[str, ...] = ("values:bell",), seed: int = 7) -> None:
        """A case without its verdict."""
        self._at += 0.5
        case = CASE | {"seed": seed}
        self.journal.write(
            "case", unit=0, phase="generate", at=self._at, case=case, strata=strata, traits=[], size=[seed]
        )

    def end(self, exit_status: int, stopped: str = "time limit") -> str:
        """Write the results; returns the report."""
        totals = Totals(self.run.journals)
        totals.update()
        totals.stopped = stopped
        write_results(self.run, totals, max(totals.elapsed, 1.0), exit_status)
        return report(self.run.directory)


def dump_of(directory: Path, check: str) -> Path:
    """The dump of the only failure of a check."""
    failures = json.loads((directory / "summary.json").read_text())["failures"]
    (path,) = (entry["path"] for entry in failures if entry["check"] == check)
    return directory / path


def report(directory: Path) -> str:
    return (directory / "report.html").read_text()
