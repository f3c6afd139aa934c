"""The controlling process of a run, or the only one: it follows the workers, ends the run and writes its results."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from xdist.scheduler import LoadScheduling

from fuzz import console, outdir, profiles, resume
from fuzz.journal import read
from fuzz.options import Options
from fuzz.progress import open_display, terminal_stream
from fuzz.run import Run
from fuzz.summary import write_results
from fuzz.totals import Totals
from fuzz.units import Board
from fuzz.watch import Watch

# The short fuzz of an ordinary test run: that many cases, or fewer where they would take a worker longer than that.
SHORT_CASES = 96
SHORT_SECONDS = 60.0
# Workers that die before their first case, one after the other, go on dying.
MAX_STILLBORN = 3


class Controller:
    """A plugin for the session that a run is or has.

    run  what all its processes agree on
    """

    def __init__(
        self, config: pytest.Config, options: Options, values: dict[str, Any], device: str, gpus: int, started: float
    ) -> None:
        """`values` are the options that the user set, none in an ordinary test run; `gpus` share the workers."""
        self._fuzzing = fuzzing = bool(values)
        self._stack = contextlib.ExitStack()
        self._stillborn = 0
        self._taken_up: list[pytest.TestReport] = []
        self._is_all_told = True  # by the journals, and so at the end of the run
        directory = values.get("resume", options.out) if fuzzing else _short_directory(config)
        workers = config.option.numprocesses or 1
        if "resume" in values:
            self._stack.enter_context(outdir.locked(directory))
            run = resume.continued(values, started)
        else:
            self._stack.enter_context(outdir.occupied(directory, keep=fuzzing))
            if not fuzzing:
                options = dataclasses.replace(options, max_cases=SHORT_CASES)
            seed = options.seed if options.seed is not None else profiles.seed_of_a_run() if fuzzing else 0
            run = Run.begun(options, seed, device, directory, started)
        patience = None if fuzzing else SHORT_SECONDS
        self.run = dataclasses.replace(run, patience=patience, shards=workers, sharing=-(-workers // gpus))
        outdir.save(self.run)
        if fuzzing and config.option.maxworkerrestart is None:
            config.option.maxworkerrestart = "1000000"  # a kernel may well kill a worker now and then, all night
        self._watch = Watch(self.run, self._abandon)

    def pytest_unconfigure(self) -> None:
        self._stack.close()

    def pytest_report_header(self) -> list[str]:
        run = self.run
        if not self._fuzzing:
            return [f"mla-fuzz: {run.options.max_cases} cases of {run.options.kernel} on {run.device}, seed {run.seed}"]
        return console.opening(run, os.environ)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScheduling | None:
        return OneShardEach(config, log) if self._fuzzing else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport, sched: Any) -> None:
        """Let the worker that replaces a dead one take its shard up again; the death is in the journal."""
        if self._fuzzing and self.run.stop_wanted() is None:
            sched.mark_test_pending(crashitem)
            self._taken_up.append(report)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return ("", "", "") if any(report is one for one in self._taken_up) else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        traceback = getattr(report.longrepr, "reprtraceback", None)
        if report.failed and traceback is not None and traceback.style != "value":
            self._is_all_told = False  # an exception of the worker, and not pytest.fail with what the journals tell

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        name = self.run.named(node.gateway.id)
        if name in self._watch.killed and self.run.stop_wanted() is not None:
            pytest.exit("workers that did not end in time were killed")  # before xdist replaces them
        if error is None or name in self._watch.killed:
            return
        self._watch.journal.write("died", worker=name)
        if self._fuzzing and not _ran_a_case(self.run, name):
            self._stillborn += 1
            if self._stillborn >= MAX_STILLBORN:
                message = f"{self._stillborn} workers died before their first case: does loading the kernel kill them?"
                self._watch.journal.write("error", usage=True, message=message)
                pytest.exit(message, returncode=2)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        if self._fuzzing:
            self._terminal = self._stack.enter_context(terminal_stream())
            self._watch.display = open_display(self.run, self._terminal)
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
            if self._is_all_told:
                session.config.option.tbstyle = "no"  # pytest would tell it once more for each worker

    def _exit_status(self, totals: Totals, session_status: int) -> int:
        if totals.buckets():
            return 1
        if totals.errors or not totals.cases or totals.stopped == "interrupted":
            return 2
        ended_well = session_status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        return 0 if ended_well or self._watch.killed else 2

    def _write(self, totals: Totals, status: int) -> None:
        if totals.stopped is None:
            board = Board(self.run.journals, self.run.options.max_cases, self.run.options.shard)
            in_time = self.run.deadline is None or board.is_empty()
            totals.stopped = "all cases done" if in_time else "time limit"
        write_results(self.run, totals, time.monotonic() - self.run.started, status)

    def _abandon(self, totals: Totals) -> NoReturn:
        """Leave a session that does not end by itself, after its time."""
        status = self._exit_status(totals, pytest.ExitCode.OK)
        self._write(totals, status)
        message = f"mla-fuzz: the session hung after its time limit; results are in {self.run.directory}"
        print(f"\n{message}", file=self._terminal, flush=True)
        os._exit(status)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        totals, run = self._watch.totals, self.run
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


def _short_directory(config: pytest.Config) -> Path:
    """Where the short fuzz of an ordinary test run keeps its journals and failures."""
    try:
        cache: str = config.getini("cache_dir")
        return config.rootpath / cache / "d" / "mla-fuzz"
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
