"""The report of a run that is over, made from what it left."""

from __future__ import annotations

import json
from pathlib import Path

from fuzz import outdir
from fuzz.options import UsageError
from fuzz.report import page
from fuzz.totals import Totals


def write_again(directory: Path) -> Path:
    """Make DIR/report.html; if the run was killed before it had results, all of them. Returns the report's path.

    Raises:
        UsageError: there is no run in the directory, or it is not over.
    """
    run, _ = outdir.load(directory)
    with outdir.locked(directory):
        try:
            summary = json.loads((directory / "summary.json").read_text())
        except FileNotFoundError:
            outdir.recover(run)
        except (OSError, ValueError) as error:
            raise UsageError(f"{directory / 'summary.json'}: {error}") from error
        else:
            totals = Totals(run.journals)
            totals.update()
            page.write(run, totals, summary)
    return directory / page.NAME
