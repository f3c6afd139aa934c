"""The commands that take dumps of failures: replay, minimize, promote."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fuzz import machine
from fuzz.options import add_options, given

PATHS = "a dump (failures/BUCKET), its case.json, or the directory of a run, for all of its failures"
KERNEL = {
    "--kernel": "kernel to run: module:function or path/file.py:function (ours, for failures of ours)",
    "--device": "auto, cpu (Triton's interpreter) or cuda",
}
REPLAY_EPILOG = """\
Exit status: 0 FIXED, no check fails any more; 1 FAILED or FLAKY, it fails in all runs or in some; 2 ERROR, it cannot be
replayed. Nothing in a dump is run: a kernel that is not ours has to be named."""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers to what argparse's add_subparsers returned."""
    _add(
        commands,
        "replay",
        "run the cases of failures again: FIXED, FAILED, FLAKY or ERROR",
        _replay,
        KERNEL,
        epilog=REPLAY_EPILOG,
    )
    _add(
        commands,
        "minimize",
        "look for smaller cases of failures, and put them into their dumps",
        _minimize,
        KERNEL | {"--max-time": "wall time for each failure: 90s, 10m, 8h (2m)"},
    )
    _add(
        commands,
        "promote",
        "add the cases of failures to tests/regressions/, which pytest replays",
        _promote,
        {},
    )


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    command: Callable[[argparse.Namespace], int],
    options: Mapping[str, str],
    epilog: str | None = None,
) -> None:
    described = f"{text[0].upper()}{text[1:]}."
    parser = commands.add_parser(name, help=text, description=described, epilog=epilog)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=PATHS)

    def add(flag: str, **settings: Any) -> None:
        if flag in options:
            variable = settings["help"].rpartition(" ")[2]
            parser.add_argument(flag, **settings | {"help": f"{options[flag]} {variable}"})

    add_options(add)
    parser.set_defaults(command=command)


# Torch and Triton are imported when the environment for them is set.
def _replay(parsed: argparse.Namespace) -> int:
    values, device = _prepare(parsed)
    from fuzz.replay import replay

    return replay(parsed.paths, values.get("kernel"), device)


def _minimize(parsed: argparse.Namespace) -> int:
    values, device = _prepare(parsed)
    from fuzz.minimize import minimize

    return minimize(parsed.paths, values.get("kernel"), device, values.get("max_time"))


def _promote(parsed: argparse.Namespace) -> int:
    _prepare(parsed)
    from fuzz.regressions import promote

    return promote(parsed.paths)


def _prepare(parsed: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The options that were given, and the device; this process is made ready for it."""
    values = given(parsed, os.environ)
    gpus = machine.visible_gpus()
    device = machine.choose_device(values.get("device", "auto"), gpus)
    machine.prepare_worker(device, gpus, 0)
    return values, device
