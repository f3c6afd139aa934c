"""The command line: `python -m fuzz` and the script `mla-fuzz`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import pytest

from fuzz import doctor, dump_cli, exchange_cli, runs_cli
from fuzz.cluster.command import is_on_cluster
from fuzz.cluster.command import run as run_on_cluster
from fuzz.machine import check_workers
from fuzz.mutants import command as mutants
from fuzz.names import check_packages
from fuzz.options import ALL, WORKERS_VARIABLE, UsageError, add_options, given
from fuzz.parsers import reported, workers
from fuzz.run import SUITE

EPILOG = """\
Every option has an environment twin, shown in brackets; the command line wins. `pytest -n auto` takes all but --ray.
Exit status: 0 nothing was found, 1 a failure was found, 2 the run could not be done, or ran no case."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="mla-fuzz", description="Prove that a paged MLA attention kernel is right.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    run = commands.add_parser("run", help="fuzz a kernel", description="Fuzz a kernel.", epilog=EPILOG)
    add_options(run.add_argument)
    run.add_argument(
        "-n",
        "--workers",
        dest="workers",
        metavar="N",
        type=reported(workers),
        help=f"worker processes: a number, or auto (cores, or a few for each GPU) [{WORKERS_VARIABLE}]",
    )
    run.set_defaults(command=_run)
    dump_cli.add_commands(commands)
    runs_cli.add_commands(commands)
    exchange_cli.add_commands(commands)
    mutants.add_command(commands)
    doctor.add_command(commands)
    parsed = parser.parse_args(arguments)
    try:
        check_packages()
        status: int = parsed.command(parsed)
        sys.stdout.flush()
        return status
    except UsageError as error:
        print(f"mla-fuzz: {error}", file=sys.stderr)
    except BrokenPipeError:  # nobody reads on: `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a full disk, a file in place of a directory
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"mla-fuzz: {where}{error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        pass
    return 2


def _run(parsed: argparse.Namespace) -> int:
    """Fuzz: a pytest session of the suite, with what was given on the command line passed on."""
    values = given(parsed, os.environ, ALL)  # complain about the environment before pytest starts
    asked = parsed.workers or _workers_from_environment() or "auto"
    if is_on_cluster(values):
        return run_on_cluster(values, asked)
    if asked != "auto":
        check_workers(asked)
    arguments = ["-p", "fuzz.plugin", "-p", "no:cacheprovider", "-c", str(SUITE / "run.ini"), str(SUITE)]
    arguments += ["-n", asked]
    for option in ALL:
        value = getattr(parsed, option.dest)
        for part in [] if value is None else value if option.repeated else [value]:
            arguments += [option.flag, ",".join(part) if isinstance(part, tuple) else str(part)]
    status = pytest.main(arguments)
    return int(status) if status in (0, 1) else 2


def _workers_from_environment() -> str | None:
    text = os.environ.get(WORKERS_VARIABLE)
    try:
        return workers(text) if text else None
    except ValueError as error:
        raise UsageError(f"{WORKERS_VARIABLE}: {error}") from None
