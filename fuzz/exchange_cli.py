"""The commands for FlashInfer-Bench: check, export."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from fuzz import machine
from fuzz.options import Options, add_options, given

_OPTIONS = ("--kernel", "--contract", "--without", "--profile", "--seed", "--device")
_CHECK_EPILOG = """\
Random inputs follow from --seed (0) and the UUID. Exit status: 0 all passed; 1 one failed; 2 one could not be
judged, or there was none."""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers to what argparse's add_subparsers returned."""
    text = "judge a kernel on FlashInfer-Bench workloads"
    check = commands.add_parser("check", help=text, description=f"{text.capitalize()}.", epilog=_CHECK_EPILOG)
    check.add_argument(
        "paths", nargs="+", type=Path, metavar="WORKLOADS.jsonl", help="workloads, or the workload.jsonl of a dump"
    )
    add_options(lambda flag, **settings: check.add_argument(flag, **settings) if flag in _OPTIONS else None)
    check.set_defaults(command=_check)

    text = "write our definition and kernel, and failures as workloads, as a FlashInfer-Bench trace set"
    export = commands.add_parser("export", help=text, description=f"{text[0].upper()}{text[1:]}.")
    export.add_argument("place", type=Path, metavar="DIR", help="where to write it")
    export.add_argument("failures", nargs="*", type=Path, metavar="PATH", help="dumps, or directories of runs")
    export.set_defaults(command=_export)


# Torch and Triton are imported when the environment for them is set.
def _check(parsed: argparse.Namespace) -> int:
    options = Options(**given(parsed, os.environ))
    gpus = machine.visible_gpus()
    device = machine.choose_device(options.device, gpus)
    machine.prepare_worker(device, gpus, 0)
    from fuzz.check import check

    return check(parsed.paths, options.kernel, options.claim, options.seed or 0, device)


def _export(parsed: argparse.Namespace) -> int:
    from fuzz.exchange import export

    count = export(parsed.place, parsed.failures)
    print(f"{parsed.place}: the definition, one solution, {count} workloads")
    return 0
