"""One process under compute-sanitizer, seen from the worker that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from fuzz.checks import Finding
from fuzz.journal import Event, read
from fuzz.machine import die_with
from fuzz.sandbox.tail import Tail
from fuzz.sanitizer import inside, tool

# How a process ended.
BY_ITSELF, HUNG, OUT_OF_TIME = "by itself", "hung", "out of time"

_LOG, _PRINTED = "log", "printed"
_STARTING = 150.0  # seconds until the first case: torch is imported, perhaps by many at once, and the tool set up
_PATIENCE = 120.0  # seconds that a case may take; the first ones compile
_POLL = 0.05


class Process:
    """A process that judges the request in a directory, under a tool; it does not outlive this one."""

    def __init__(self, name: str, program: str, place: Path) -> None:
        self._name, self._place = name, place
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from pathlib import Path;"
            f" from fuzz.sanitizer.inside import main; main(Path({str(place)!r}))"
        )
        worker = os.getpid()
        with (place / _PRINTED).open("wb") as printed:
            self._process = subprocess.Popen(
                tool.command(program, name, place / _LOG, [sys.executable, "-c", code]),
                env=tool.environment(),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,  # Ctrl-C is for the worker
                preexec_fn=lambda: die_with(worker),
            )

    def events(self) -> list[Event]:
        """What it has written down so far."""
        journal = self._place / f"{inside.JOURNAL}.jsonl"
        return [event for event, _ in read(journal)] if journal.exists() else []

    def wait(self, until: float) -> str:
        """Wait for its end, and say what that was: a case may hang, and the time may be up before."""
        seen, changed = 0, time.monotonic()
        while self._process.poll() is None:
            time.sleep(_POLL)
            now, events = time.monotonic(), self.events()
            if len(events) > seen:
                seen, changed = len(events), now
            if now > until:
                return OUT_OF_TIME
            if now - changed > (_PATIENCE if any(event["event"] == inside.BEGINS for event in events) else _STARTING):
                return HUNG
        return BY_ITSELF

    def kill(self) -> None:
        """End it, and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pid in (event["pid"] for event in self.events() if event["event"] == inside.STARTED):
            # The tool may have started it in a group of its own. Its number may be another's by now.
            with contextlib.suppress(OSError):
                if str(self._place) in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)

    def log(self) -> str:
        """What the tool has written."""
        log = self._place / _LOG
        return log.read_text(errors="replace") if log.exists() else ""

    def death(self, ended: str) -> Finding | None:
        """What the check `alive` says of the case that it was in; None where it was not its fault."""
        if ended == OUT_OF_TIME:
            return None
        if ended == HUNG:
            detail, cause = f"it did not return within {_PATIENCE:.0f} s under {self._name}", "timeout"
        else:
            status = self._process.returncode
            detail, cause = f"its process ended with exit status {status} under {self._name}", f"exit-{status}"
        return Finding("alive", detail, cause=cause, printed=self.printed())

    def printed(self) -> str:
        """The last lines that it printed."""
        tail = Tail(os.open(self._place / _PRINTED, os.O_RDONLY))
        tail.read()
        tail.close()
        return tail.text()
