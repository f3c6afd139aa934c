"""`python -m fuzz mutants`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from fuzz.document import part, put
from fuzz.machine import auto_workers, check_workers, choose_device, prepare_worker, visible_gpus
from fuzz.mutants.mutant import GROUPS, HOPPER, JUDGE, NAMED
from fuzz.options import UsageError
from fuzz.parsers import duration, names, positive, reported, seed, workers

COMMAND = "python -m fuzz mutants"
OUT = Path("mutant-results")
GROUPS_HELP = "of named, hopper, generated, hopper-generated and judge (named,hopper,judge)"
DESCRIPTION = """\
Plant faults, one at a time, and see whether they are noticed: named and generated ones in our kernel by the fuzzer,
those in the reference and the judge by our own tests."""
EPILOG = """\
Exit status: 0 all that should die were killed, 1 one survived, 2 one could not be tried: its edit does not fit the
source any more, the time was up, the judge failed, or what is not mutated was killed too."""


def add_command(commands: Any) -> None:
    """Add `mutants` to the commands of `python -m fuzz`."""
    parser = commands.add_parser(
        "mutants", help="score the suite on planted faults", description=DESCRIPTION, epilog=EPILOG
    )
    add = parser.add_argument
    add("--only", metavar="NAME,...", type=reported(names), default=(), help="these mutants")
    add("--groups", metavar="NAME,...", type=_groups, default=(NAMED, HOPPER, JUDGE), help=GROUPS_HELP)
    add("--rules", action="store_true", help="have published suites' rules judge them, on inputs like their own")
    add("--sample", metavar="N", type=reported(positive), help="N of each group, always the same ones")
    add("--max-cases", metavar="N", type=reported(positive), default=500, help="cases for a mutant (500)")
    add("--max-time", metavar="TIME", type=reported(duration), help="begin no mutant after that: 90s, 10m, 2h")
    add("--seed", metavar="N", type=reported(seed), default=0, help="of the cases (0)")
    add("--strata", metavar="NAME,...", type=reported(names), default=(), help="draw these strata only")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("-n", dest="workers", metavar="N", type=reported(workers), default="auto", help="processes: a number, or auto")
    add("--write", metavar="FILE", type=Path, help="also put the tables into this document: docs/mutants.md")
    add("--out", metavar="DIR", type=Path, default=OUT, help=f"for mutants.json and mutants.md ({OUT})")
    add("--resume", action="store_true", help="keep what an earlier run in --out found on the same sources and cases")
    parser.set_defaults(command=run)


def run(parsed: argparse.Namespace) -> int:
    """Run the mutants that were asked for; returns the exit status."""
    gpus = visible_gpus()
    device = choose_device(parsed.device, gpus)
    processes = auto_workers(device, gpus)
    if parsed.workers != "auto":
        check_workers(parsed.workers)
        processes = max(1, int(parsed.workers))
    document = f"{COMMAND} --rules" if parsed.rules else COMMAND
    parsed.out.mkdir(parents=True, exist_ok=True)
    if parsed.write is not None:  # what cannot be written is better known before the work
        try:
            part(parsed.write.read_text(), document)
        except ValueError as error:
            raise UsageError(f"--write {parsed.write}: {error}") from None
    prepare_worker(device, gpus, 0, os.environ)
    # After the environment is set: these import torch and Triton.
    from fuzz.mutants import session
    from fuzz.mutants.edit import StaleEdit

    began = time.monotonic()
    try:
        score = session.judged_by_rules if parsed.rules else session.fuzzed
        report = score(parsed, device, processes, began)
    except StaleEdit as error:
        raise UsageError(str(error)) from error
    if parsed.write is not None:
        put(parsed.write, document, report.markdown())
    print(report.summary(), file=sys.stderr)
    return report.exit_status


def _groups(text: str) -> tuple[str, ...]:
    for name in names(text):
        if name not in GROUPS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(GROUPS)}")
    return names(text)
