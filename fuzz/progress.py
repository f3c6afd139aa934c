"""What a person sees of a run while it goes on: a live bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from typing import IO, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fuzz.run import Run
from fuzz.totals import Totals
from fuzz.words import ratio_text

LINE_EVERY = 10.0


class Display(Protocol):
    """Shows totals now and then, until it is closed."""

    def show(self, totals: Totals) -> None: ...

    def close(self) -> None: ...


class LiveDisplay:
    """A bar over the time or the cases of the run, redrawn in place."""

    def __init__(self, run: Run, stream: IO[str]) -> None:
        self._run = run
        columns = BarColumn(bar_width=24), TextColumn("{task.description}")
        self._progress = Progress(*columns, console=Console(file=stream), transient=True)
        self._task = self._progress.add_task("starting", total=1.0)
        self._progress.start()

    def show(self, totals: Totals) -> None:
        self._progress.update(self._task, completed=_fraction(self._run, totals), description=line(self._run, totals))

    def close(self) -> None:
        self._progress.stop()


class LineDisplay:
    """A line every ten seconds."""

    def __init__(self, run: Run, stream: IO[str]) -> None:
        self._run = run
        self._stream = stream
        self._next = time.monotonic() + LINE_EVERY

    def show(self, totals: Totals) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LINE_EVERY
            print(
                f"mla-fuzz: {now - self._run.started:.0f} s, {line(self._run, totals)}", file=self._stream, flush=True
            )

    def close(self) -> None:
        pass


def open_display(run: Run, stream: IO[str]) -> Display:
    """The display that suits the stream."""
    return LiveDisplay(run, stream) if stream.isatty() else LineDisplay(run, stream)


def line(run: Run, totals: Totals) -> str:
    """Cases, cases per second, what is left, worst ratios, strata and failures, in one line."""
    elapsed = time.monotonic() - run.started
    parts = [f"{totals.cases:,} cases", f"{totals.cases / elapsed:.1f}/s"]
    if run.deadline is not None:
        parts.append(f"{max(0.0, run.deadline - time.monotonic()):.0f} s left")
    if run.options.max_cases is not None:
        parts.append(f"of {run.options.max_cases:,}")
    parts += [f"worst {check} {ratio_text(totals.worst(check))}" for check in ("output", "lse")]
    parts.append(f"{len(totals.strata)} strata")
    parts.append(f"{totals.distinct()} failures")
    return ", ".join(parts)


def _fraction(run: Run, totals: Totals) -> float:
    """How much of the run is done, by whichever limit is nearer."""
    done = [0.0]
    if run.deadline is not None:
        done.append((time.monotonic() - run.started) / (run.deadline - run.started))
    if run.options.max_cases is not None:
        done.append(totals.cases / run.options.max_cases)
    return min(1.0, max(done))


def terminal_stream() -> IO[str]:
    """The terminal, or whatever standard output is, out of the reach of pytest's capturing: call it between tests."""
    assert sys.__stdout__ is not None  # there is one but under pythonw
    return os.fdopen(os.dup(sys.__stdout__.fileno()), "w", encoding="utf-8", errors="replace")
