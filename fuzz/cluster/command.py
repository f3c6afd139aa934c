"""`python -m fuzz run --ray ADDRESS`: a run on a cluster, in a process of its own.

Ray ends a process whose cluster is gone, with status 1. So the one that the user started keeps away from Ray: it waits
for the driver, and writes the results if the driver could not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fuzz import console, corpus, outdir
from fuzz.cluster.driver import Driver
from fuzz.cluster.engine import Engine
from fuzz.cluster.gather import Gathered
from fuzz.cluster.plan import Plan, command, divide, part
from fuzz.files import write_json
from fuzz.journal import Journal
from fuzz.machine import die_with, process_start
from fuzz.options import Options, UsageError
from fuzz.progress import open_display, terminal_stream
from fuzz.resume import CLUSTER, changed, check_options
from fuzz.run import Run
from fuzz.spec import located
from fuzz.summary import write_results
from fuzz.totals import Totals

PROGRAM = ("-m", "fuzz")  # what the Python of a node runs a shard with
_BEGAN = b"began"


def is_on_cluster(values: Mapping[str, Any]) -> bool:
    """Whether the options are those of a run on a cluster, or go on with one."""
    return "ray" in values or ("resume" in values and _plan_path(values["resume"]).exists())


def run(values: Mapping[str, Any], workers: str) -> int:
    """Do a run on a cluster; returns the exit status.

    values   the options that the user gave, by field
    workers  "auto" or the most worker processes at a time

    Raises:
        UsageError: it cannot be done.
    """
    if importlib.util.find_spec("ray") is None:
        raise UsageError("--ray needs the package ray, of the extra mla-fuzz[cluster]")
    started = process_start()
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        os.close(reading)
        die_with(parent)
        os.setpgid(0, 0)  # Ctrl-C is for the parent, which passes it on
        _in_child(writing, lambda: _Session(values, workers, started, lambda: os.write(writing, _BEGAN)).work())
    os.close(writing)
    with _passed_on(child):
        said = b"".join(iter(lambda: os.read(reading, 100), b""))
        _, status = os.waitpid(child, 0)
    os.close(reading)
    if said.removeprefix(_BEGAN):
        return int(said.removeprefix(_BEGAN))
    ended = f"the driver was ended from outside, by Ray if the cluster is gone (status {status})"
    print(f"mla-fuzz: {ended}", file=sys.stderr)
    directory = values.get("resume") or Options(**_kept(values)).out
    return _recovered(directory, f"{ended}; --resume {directory} goes on") if said else 2


def _in_child(writing: int, work: Callable[[], int]) -> NoReturn:
    status = 2
    try:
        status = work()
    except UsageError as error:
        print(f"mla-fuzz: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(writing, str(status).encode())
        os._exit(status)


@contextlib.contextmanager
def _passed_on(child: int) -> Iterator[None]:
    """Pass Ctrl-C and SIGTERM on to the driver."""

    def pass_on(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _recovered(directory: Path, message: str) -> int:
    """Write the results of a run whose driver is gone."""
    with outdir.locked(directory):
        one, _ = outdir.load(directory)
        Journal(one.journals, "driver").write("error", usage=False, message=message)
        return outdir.recover(one)


def _interrupt(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class _Session:
    """One process's work on a run; `began` is called once it has the run's directory."""

    values: Mapping[str, Any]
    workers: str
    started: float
    began: Callable[[], object]

    def work(self) -> int:
        """Returns the exit status."""
        directory, plan = self.values.get("resume"), None
        if directory is None:
            options, address = Options(**_kept(self.values)), self.values["ray"]
            directory = options.out
        else:
            check_options(self.values)
            options = outdir.load(directory)[0].options
            address, plan = _load_plan(directory)
        located(options.kernel)
        if options.database:
            corpus.require()
        most = None if self.workers == "auto" else int(self.workers)
        address = self.values.get("ray", address)
        engine = Engine(address, options.device, most)
        with contextlib.ExitStack() as stack:
            stack.callback(engine.close)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, _interrupt)  # in place of Ray's own handler
            if plan is None:
                stack.enter_context(outdir.occupied(directory, keep=True))
                seed = secrets.randbits(63) if options.seed is None else options.seed
                one = Run.begun(options, seed, engine.device, directory, self.started)
                plan = divide(one.options, engine.slots(), engine.processes)
                gathered = Gathered(one)
            else:
                stack.enter_context(outdir.locked(directory))
                one = outdir.load(directory)[0]
                gathered = Gathered(one)
                one = changed(one, gathered.take_up(), self.values, self.started)
            one = dataclasses.replace(one, shards=engine.slots() * plan.processes)
            outdir.save(one)
            write_json(_plan_path(one.directory), dataclasses.asdict(plan) | {"ray": address})
            self.began()
            return _drive(one, plan, engine, gathered, address)


def _drive(one: Run, plan: Plan, engine: Engine, gathered: Gathered, address: str) -> int:
    for line in console.opening(one, os.environ):
        print(line)
    first = part(one, plan, 0)
    alone = command(first).replace(f"--shard {first.options.shard}", f"--shard I/{first.options.shard.count}")
    at_a_time = f"{engine.slots()} shards at a time, {plan.processes} workers each"
    print(f"mla-fuzz: --ray {address}: {at_a_time}; shard I alone: {alone}", flush=True)
    driver = Driver(one, plan, engine, gathered, open_display(one, terminal_stream()), PROGRAM)
    driver.work()
    totals = gathered.totals
    if totals.stopped is None:
        early = "shards lost" if one.deadline is None else "time limit"
        totals.stopped = "all cases done" if len(gathered.done) == plan.shards else early
    status = _exit_status(totals)
    write_results(one, totals, time.monotonic() - one.started, status)
    print(console.title(totals))
    for line, _ in console.closing(one, totals, coverage=True):
        print(line)
    return status


def _exit_status(totals: Totals) -> int:
    if totals.buckets():
        return 1
    return 2 if totals.errors or not totals.cases or totals.stopped == "interrupted" else 0


def _kept(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "ray"}


def _plan_path(directory: Path) -> Path:
    return directory / "journal" / CLUSTER


def _load_plan(directory: Path) -> tuple[str, Plan]:
    """The address of the cluster that a run was begun on, and the division of the run."""
    path = _plan_path(directory)
    try:
        values = json.loads(path.read_text())
        return values.pop("ray"), Plan(**values)
    except FileNotFoundError:
        raise UsageError(f"--resume {directory}: it is no run on a cluster; leave --ray out") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path}: {error!r}") from error
