"""The pytest plugin: a fuzz run as a test session, alone or spread over xdist's workers.

There are two ways to run. A fuzz run, when any option of `fuzz.options` is given: nothing but the suite is collected,
the session lasts until the time or the cases are used up, and the exit status is 0 (nothing found), 1 (a failure was
found) or 2 (the run could not be done). Otherwise an ordinary test run, in which the suite is one test among others:
a few cases, always the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScheduling

from fuzz import console, corpus, machine, outdir, profiles, resume
from fuzz.journal import Journal, read
from fuzz.names import check_packages
from fuzz.options import ALL, Options, UsageError, add_options, given
from fuzz.progress import open_display, terminal_stream
from fuzz.run import SUITE, Run
from fuzz.sanitizer import tool
from fuzz.summary import write_results
from fuzz.totals import Totals
from fuzz.units import Board
from fuzz.watch import Watch

# The short fuzz of an ordinary test run: that many cases, or fewer where they would take a worker longer than that.
SHORT_CASES = 96
SHORT_SECONDS = 60.0
# Workers that die before their first case, one after the other, go on dying.
MAX_STILLBORN = 3

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
        _load_profile(config, "nightly" if values else "ci" if os.environ.get("CI") else "dev")
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


def _load_profile(config: pytest.Config, default: str) -> None:
    """Load a profile now: Hypothesis' own plugin loads the one on the command line too late for the run's seed."""
    name = config.getoption("--hypothesis-profile") or os.environ.get("HYPOTHESIS_PROFILE") or default
    if name not in profiles.NAMES:
        raise UsageError(f"Hypothesis profile {name!r} is none of {', '.join(profiles.NAMES)}")
    settings.load_profile(name)


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
    config.pluginmanager.register(
        Controller(config, options, values, device, max(1, len(gpus))), "mla-fuzz-controller"
    )


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


class Controller:
    """What the controlling process, or the only one, does for a run."""

    def __init__(
        self, config: pytest.Config, options: Options, values: dict[str, Any], device: str, gpus: int
    ) -> None:
        self._config = config
        self._fuzzing = fuzzing = bool(values)
        self._stack = contextlib.ExitStack()
        self._stillborn = 0
        self._taken_up: list[pytest.TestReport] = []
        directory = values.get("resume", options.out) if fuzzing else _short_directory(config)
        workers = config.option.numprocesses or 1
        if "resume" in values:
            self._stack.enter_context(outdir.locked(directory))
            run = resume.continued(values, _started)
        else:
            self._stack.enter_context(outdir.occupied(directory, keep=fuzzing))
            if not fuzzing:
                options = dataclasses.replace(options, max_cases=SHORT_CASES)
            run = Run.begun(options, _seed(options, fuzzing), device, directory, _started)
        self._run = config.stash[_run] = dataclasses.replace(
            run, patience=None if fuzzing else SHORT_SECONDS, shards=workers, sharing=-(-workers // gpus)
        )
        outdir.save(self._run)
        if fuzzing and config.option.maxworkerrestart is None:
            config.option.maxworkerrestart = "1000000"  # a kernel may well kill a worker now and then, all night
        self._watch = Watch(self._run, self._abandon)

    def pytest_unconfigure(self) -> None:
        self._stack.close()

    def pytest_report_header(self) -> list[str]:
        run = self._run
        if not self._fuzzing:
            return [f"mla-fuzz: {run.options.max_cases} cases of {run.options.kernel} on {run.device}, seed {run.seed}"]
        return console.opening(run, os.environ)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScheduling | None:
        return OneShardEach(config, log) if self._fuzzing else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Let the worker that replaces a dead one take its shard up again; the death is in the journal."""
        if self._fuzzing and self._run.stop_wanted() is None:
            sched.mark_test_pending(crashitem)
            self._taken_up.append(report)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("", "", "") if any(report is one for one in self._taken_up) else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        name = self._run.named(node.gateway.id)
        if name in self._watch.killed and self._run.stop_wanted() is not None:
            pytest.exit("workers that did not end in time were killed")  # before xdist replaces them
        if error is None or name in self._watch.killed:
            return
        self._watch.journal.write("died", worker=name)
        if self._fuzzing and not _ran_a_case(self._run, name):
            self._stillborn += 1
            if self._stillborn >= MAX_STILLBORN:
                message = f"{self._stillborn} workers died before their first case: does loading the kernel kill them?"
                self._watch.journal.write("error", usage=True, message=message)
                pytest.exit(message, returncode=2)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        if self._fuzzing:
            self._terminal = self._stack.enter_context(terminal_stream())
            self._watch.display = open_display(self._run, self._terminal)
            self._stack.enter_context(_interrupted_by(signal.SIGTERM))
        self._watch.start()
        try:
            return (yield)
        except KeyboardInterrupt:
            self._watch.interrupt()
            raise

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self._watch.is_alive():
            return  # the session ended before it ran anything
        self._watch.finish()
        status = self._exit_status(self._watch.totals, session.exitstatus)
        self._write(self._watch.totals, status)
        if self._fuzzing:
            session.exitstatus = status

    def _exit_status(self, totals: Totals, session_status: int) -> int:
        if totals.buckets():
            return 1
        if totals.errors or not totals.cases or totals.stopped == "interrupted":
            return 2
        ended_well = session_status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        return 0 if ended_well or self._watch.killed else 2

    def _write(self, totals: Totals, status: int) -> None:
        if totals.stopped is None:
            board = Board(self._run.journals, self._run.options.max_cases, self._run.options.shard)
            in_time = self._run.deadline is None or board.is_empty()
            totals.stopped = "all cases done" if in_time else "time limit"
        write_results(self._run, totals, time.monotonic() - self._run.started, status)

    def _abandon(self, totals: Totals) -> NoReturn:
        """Leave a session that does not end by itself, after its time."""
        status = self._exit_status(totals, pytest.ExitCode.OK)
        self._write(totals, status)
        message = f"mla-fuzz: the session hung after its time limit; results are in {self._run.directory}"
        print(f"\n{message}", file=self._terminal, flush=True)
        os._exit(status)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        totals, run = self._watch.totals, self._run
        if not self._fuzzing and not totals.buckets():
            return
        terminalreporter.ensure_newline()
        terminalreporter.section(console.title(totals))
        for line, bad in console.closing(run, totals, coverage=self._fuzzing):
            terminalreporter.write_line(line, red=bad)


class OneShardEach(LoadScheduling):
    """Gives each worker one shard, and the shard of a worker that died to the one that replaces it. xdist's own
    schedulers would queue it behind a shard that lasts as long as the run."""

    def check_schedule(self, node: Any, duration: float = 0) -> None:
        if node.shutting_down:
            return
        if self.pending:
            self._send_tests(node, 1)
        node.shutdown()


def _seed(options: Options, fuzzing: bool) -> int:
    if options.seed is not None:
        return options.seed
    return secrets.randbits(63) if fuzzing and not settings.default.derandomize else 0


def _short_directory(config: pytest.Config) -> Path:
    """Where the short fuzz of an ordinary test run keeps its journals and failures."""
    try:
        return config.rootpath / config.getini("cache_dir") / "d" / "mla-fuzz"
    except ValueError:  # -p no:cacheprovider
        return Path(tempfile.mkdtemp(prefix="mla-fuzz-"))


def _ran_a_case(run: Run, worker: str) -> bool:
    path = run.journals / f"{worker}.jsonl"
    return path.exists() and any(event["event"] == "case" for event, _ in read(path))


@contextlib.contextmanager
def _interrupted_by(number: int) -> Generator[None]:
    """Let a signal, as job schedulers send it, end the run like Ctrl-C."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)
