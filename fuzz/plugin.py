"""The pytest plugin: a fuzz run as a test session, alone or spread over xdist's workers.

There are two ways to run. A fuzz run, when any option of `fuzz.options` is given: nothing but the suite is collected,
the session lasts until the time or the cases are used up, and the exit status is 0 (nothing found), 1 (a failure was
found) or 2 (the run could not be done). Otherwise an ordinary test run, in which the suite is one test among others:
a few cases, always the same.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fuzz import corpus, machine, outdir, profiles
from fuzz.controller import Controller
from fuzz.journal import Journal
from fuzz.names import check_packages
from fuzz.options import ALL, Options, UsageError, add_options, given
from fuzz.run import SUITE, Run
from fuzz.sanitizer import tool
from fuzz.spec import located

_machine = pytest.StashKey[tuple[str, list[str]]]()
_run = pytest.StashKey[Run]()
_started = 0.0  # set for each session in pytest_addoption


def pytest_addoption(parser: pytest.Parser) -> None:
    global _started
    _started = machine.process_start()
    add_options(parser.getgroup("mla-fuzz", "fuzzing of attention kernels").addoption)
    profiles.register()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """What -n auto means: cores, or a few workers for each GPU."""
    gpus = machine.visible_gpus()
    try:
        values = given(config.option, os.environ, ALL)
        if not _is_ours(config, values):
            return None
        device = machine.choose_device(values.get("device", "auto"), gpus)
    except UsageError:
        return 1  # the run ends before any worker starts
    return machine.auto_workers(device, gpus)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    try:
        values = given(config.option, os.environ, ALL)
        if values and config.args_source is not config.ArgsSource.ARGS:
            config.args[:] = [str(SUITE)]
        if not _is_ours(config, values):
            return
        check_packages()
        # now: Hypothesis' own plugin loads the one on the command line too late for the run's seed
        asked = config.getoption("--hypothesis-profile") or os.environ.get("HYPOTHESIS_PROFILE")
        profiles.load(asked or ("nightly" if values else "ci" if os.environ.get("CI") else "dev"))
        if hasattr(config, "workerinput"):
            _configure_worker(config, config.workerinput)
        else:
            _configure_controller(config, values)
    except UsageError as error:
        pytest.exit(f"mla-fuzz: {error}", returncode=2)


def _is_ours(config: pytest.Config, values: dict[str, Any]) -> bool:
    """Whether a session is a fuzz run or one of this project's own. All others, of projects whose conftest loads the
    plugin, are left as they are."""
    return bool(values) or config.rootpath == SUITE.parents[1] or any(map(_reaches_suite, config.args))


def _configure_worker(config: pytest.Config, workerinput: dict[str, Any]) -> None:
    device, gpus = workerinput["mla_fuzz_machine"]
    machine.prepare_worker(device, gpus, int(workerinput["workerid"].removeprefix("gw")))
    if "mla_fuzz_run" in workerinput:
        run = config.stash[_run] = Run.from_json(workerinput["mla_fuzz_run"])
        Journal(run.journals, run.named(workerinput["workerid"])).write("worker", pid=os.getpid())
        if run.patience is None:
            # Ctrl-C reaches the whole process group; the controller decides how its workers end
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _configure_controller(config: pytest.Config, values: dict[str, Any]) -> None:
    if "ray" in values:
        raise UsageError("--ray: a run on a cluster is not a session of pytest; `python -m fuzz run` takes it")
    resumed = values.get("resume")
    options = Options(**values) if resumed is None else outdir.load(resumed)[0].options
    located(options.kernel)
    if options.database:
        corpus.require()
    gpus = machine.visible_gpus()
    device = machine.choose_device(options.device, gpus)
    if options.sanitize:
        tool.require(options.sanitize, device)
    config.stash[_machine] = device, gpus
    if not config.option.numprocesses and device == "cpu":
        machine.prepare_worker(device, gpus, 0)
    on_command_line = [option.flag for option in ALL if getattr(config.option, option.dest) is not None]
    if not any(_reaches_suite(argument) for argument in config.args):
        if on_command_line:
            raise UsageError(f"{', '.join(on_command_line)}: none of the paths given leads to {SUITE.name}/")
        return
    controller = Controller(config, options, values, device, max(1, len(gpus)), _started)
    config.stash[_run] = controller.run
    config.pluginmanager.register(controller, "mla-fuzz-controller")


def _reaches_suite(argument: str) -> bool:
    """Whether pytest comes to the suite by a path: not where it is installed in an environment below that."""
    path = Path(argument.partition("::")[0]).resolve()
    if path == SUITE or SUITE in path.parents:
        return True
    return path in SUITE.parents and "site-packages" not in SUITE.relative_to(path).parts


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    if _machine in node.config.stash:
        node.workerinput["mla_fuzz_machine"] = node.config.stash[_machine]
    if _run in node.config.stash:
        node.workerinput["mla_fuzz_run"] = node.config.stash[_run].to_json()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The suite's test exists once for each worker."""
    if "shard" in metafunc.fixturenames:
        shards = metafunc.config.stash[_run].shards if _run in metafunc.config.stash else 1
        metafunc.parametrize("shard", range(shards))


@pytest.fixture
def fuzz_run(request: pytest.FixtureRequest) -> Run:
    """The run that this session is or has."""
    return request.config.stash[_run]


@pytest.fixture
def fuzz_worker(request: pytest.FixtureRequest, fuzz_run: Run) -> str:
    """The name of this process in the run."""
    return fuzz_run.named(getattr(request.config, "workerinput", {"workerid": "main"})["workerid"])
