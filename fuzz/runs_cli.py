"""The commands that take directories of runs: report, merge."""

from __future__ import annotations

import argparse
from pathlib import Path

from fuzz.merge import merge
from fuzz.report.again import write_again

REPORT_EPILOG = """\
A run that was killed before it had results gets all of them: summary.json, junit.xml and failures/ too."""
MERGE_EPILOG = """\
Exit status: 1 if a run found a failure, else 2 if one could not be done, was killed or is missing, else 0."""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers to what argparse's add_subparsers returned."""
    report = commands.add_parser(
        "report",
        help="make report.html again from what a run left",
        description="Make report.html again from what a run left.",
        epilog=REPORT_EPILOG,
    )
    report.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="what --out of the run was")
    report.set_defaults(command=_report)
    joined = commands.add_parser(
        "merge",
        help="join the results of several machines",
        description="Join the results of several machines, as of one run: see --shard of run.",
        epilog=MERGE_EPILOG,
    )
    joined.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="what --out of each run was")
    joined.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the joint results go")
    joined.set_defaults(command=_merge)


def _report(parsed: argparse.Namespace) -> int:
    for directory in parsed.directories:
        print(write_again(directory))
    return 0


def _merge(parsed: argparse.Namespace) -> int:
    status = merge(parsed.directories, parsed.out)
    print(parsed.out / "report.html")
    return status
