"""The controlling process's eye on a run: it follows the journals, shows progress, and makes the run end on time."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from fuzz.dumps import Dumps
from fuzz.journal import Journal
from fuzz.progress import Display
from fuzz.run import Run
from fuzz.totals import Totals
from fuzz.words import counted

INTERVAL = 0.25
# Failures are written down this often, so that a run that is killed leaves them.
DUMP_INTERVAL = 2.0
# A worker that is still in a case this many seconds after the deadline is killed; if the session has not ended that
# many seconds later, the process leaves it.
GRACE = 8.0
LAST_GRACE = 4.0
# A case that takes longer than this is taken for a hang, and its worker is replaced. Long, as a kernel may be compiled
# and tuned within a case.
HANG_SECONDS = 300.0
# What a worker gets to finish its case after Ctrl-C.
INTERRUPT_GRACE = 2.0


class Watch(threading.Thread):
    """Follows a run until `finish`.

    abandon  called when the session does not end by itself; it must not return
    display  may be set before the start
    """

    display: Display | None = None

    def __init__(self, run: Run, abandon: Callable[[Totals], NoReturn]) -> None:
        super().__init__(name="mla-fuzz watch", daemon=True)
        self.totals = Totals(run.journals)
        self.journal = Journal(run.journals, "controller")
        self.killed: set[str] = set()
        self._run = run
        self._dumps = Dumps(run)
        self._abandon = abandon
        self._finished = threading.Event()

    def run(self) -> None:
        dumped = time.monotonic()
        while not self._finished.wait(INTERVAL):
            self.totals.update()
            if self.display is not None:
                self.display.show(self.totals)
            if time.monotonic() > dumped + DUMP_INTERVAL:
                with contextlib.suppress(OSError):  # it is tried again, at the latest at the end
                    self._dumps.update(self.totals)
                dumped = time.monotonic()
            self._enforce(time.monotonic())
        if self.display is not None:
            self.display.close()

    def finish(self) -> None:
        """End the thread; `totals` is complete after this, if all workers are gone."""
        self._finished.set()
        self.join()
        self.totals.update()

    def stop(self, when: str, reason: str) -> None:
        """Make all workers stop, see Run.stop."""
        if self.totals.stopped is None:
            self.journal.write("stop", reason=reason)
            self.totals.stopped = reason
        self._run.stop(when)

    def interrupt(self) -> None:
        """Stop at once: workers may finish their case if that takes no longer than a moment."""
        self.stop("now", "interrupted")
        until = time.monotonic() + INTERRUPT_GRACE
        while self._running_workers() and time.monotonic() < until:
            time.sleep(0.05)
        self.kill_workers()

    def kill_workers(self) -> None:
        """Kill the worker processes that are left."""
        for name, pid in self._running_workers().items():
            self._kill(name, pid, "killed")

    def _kill(self, name: str, pid: int, event: str) -> None:
        self.killed.add(name)
        self.journal.write(event, worker=name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _running_workers(self) -> dict[str, int]:
        pids = list(self.totals.pids.items())  # at once: another thread may be taking in events
        return {name: pid for name, pid in pids if _is_child(pid)}

    def _enforce(self, now: float) -> None:
        options, totals = self._run.options, self.totals
        if options.max_failures is not None and totals.stopped is None and totals.distinct() >= options.max_failures:
            self.stop("finish", f"{counted(options.max_failures, 'failure')} found")
        if any(event["usage"] for event in totals.errors):
            self.stop("now", "error")
        for name, pid in self._running_workers().items():
            if name not in self.killed and now > self._run.started + totals.began(name) + HANG_SECONDS:
                self._kill(name, pid, "hung")
        if self._run.deadline is None:
            return
        if now > self._run.deadline and totals.stopped is None:
            self.stop("now", "time limit")
        if now > self._run.deadline + GRACE:
            self.kill_workers()
        if now > self._run.deadline + GRACE + LAST_GRACE:
            self._abandon(totals)


def _is_child(pid: int) -> bool:
    """Whether a process is a child of this one and still runs: its number may be another's by now."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return False
    return int(parent) == os.getpid() and state not in "ZX"
