"""All mutants, a few at a time, each in a child process that is killed when it hangs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fuzz.case import Case
from fuzz.describe import traits_of
from fuzz.journal import Journal, read
from fuzz.mutants.mutant import ANYWHERE, BROKEN, CASE, EMULATED, GPUS, KILLED, PASSED, SHRUNK, SURVIVED, Planted
from fuzz.mutants.reach import Place
from fuzz.mutants.trial import CONTRACT
from fuzz.strata import strategy
from fuzz.terms import drawn
from fuzz.units import CASES, explore, seed_of

EQUIVALENT, ELSEWHERE, ALONE, LEFT = "equivalent", "needs a GPU", "needs two GPUs", "not run"
INTERPRETED = "needs the interpreter"
# Forked, not spawned: importing torch and Triton takes as long as killing a mutant. No process before the fork may have
# touched CUDA; importing the kernel counts devices through NVML, which does not.
_FORK = multiprocessing.get_context("fork")
_POLL = 0.05
_WAITING = 5  # times the patience, by the clock


@dataclass(frozen=True, slots=True)
class Work:
    """What the process of a mutant does: call a function, with a journal as its last argument.

    patience  seconds on a CPU that the process may take without a new line in its journal, before it is said to hang;
              so many times that by the clock, should it wait for something
    """

    function: Callable[..., None]
    arguments: tuple[Any, ...]
    patience: float


@dataclass(frozen=True, slots=True)
class Passed:
    """A case that passed: what it took, in seconds, and where a marked kernel came."""

    seconds: float
    places: frozenset[Place]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant.

    state    KILLED, SURVIVED, EQUIVALENT, ELSEWHERE, ALONE, LEFT, or BROKEN where the judge itself failed
    checks   that failed in the case that killed it; "alive" where its process died or hung; or the file of the test
    traits   strata of that case that set it apart from the simplest one
    number   of the case that killed it, among those that a run of the fuzzer draws: that run takes no more
    seconds  from the start of its process, which takes no import
    case     the one that killed it; `shrunk` the smallest found after that, or None
    passed   the cases before that, by number
    """

    planted: Planted
    state: str
    checks: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()
    number: int = 0
    seconds: float = 0.0
    message: str = ""
    case: dict[str, Any] | None = None
    shrunk: dict[str, Any] | None = None
    passed: dict[int, Passed] = field(default_factory=dict, repr=False)


def draw_cases(seed: int, count: int, device: str, strata: Sequence[str] = ()) -> list[Case]:
    """The first `count` different cases that a fuzz run with this seed and `--strata` draws where nothing guides it.

    Raises UsageError for strata that cannot be drawn.
    """
    seen: dict[Case, None] = {}
    source = drawn(CONTRACT, strata, strategy.GPU if device == "cuda" else strategy.CPU)
    for unit in range(2 * count // CASES + 1):
        explore(source, seed_of(seed, unit), CASES, lambda case: seen.setdefault(case), shrink=False)
        if len(seen) >= count:
            break
    return list(seen)[:count]


def run_all(
    mutants: Iterable[Planted], work: Callable[[Planted], Work], device: str, workers: int, deadline: float
) -> Iterator[Outcome]:
    """The outcome of each mutant, as they end. `deadline` is of time.monotonic: none is begun after it."""
    waiting = list(mutants)
    running: list[_Child] = []
    with tempfile.TemporaryDirectory() as directory:
        while waiting or running:
            while waiting and len(running) < workers:
                planted = waiting.pop(0)
                state = _not_to_run(planted, device, deadline)
                if state is None:
                    journal = Path(directory) / f"{len(waiting)}.jsonl"
                    running.append(_Child(planted, journal, work(planted)))
                else:
                    yield Outcome(planted, state, message=planted.equivalent or planted.shown_by)
            for child in [child for child in running if child.ended()]:
                running.remove(child)
                yield child.outcome()
            time.sleep(_POLL)


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, called in a child process: for one that touches CUDA."""
    with _FORK.Pool(1) as pool:
        return pool.apply(function, arguments)


def _not_to_run(planted: Planted, device: str, deadline: float) -> str | None:
    if planted.equivalent:
        return EQUIVALENT
    if planted.where != ANYWHERE and device != "cuda":
        return ELSEWHERE
    if planted.group in EMULATED and device == "cuda":
        return INTERPRETED
    if planted.where == GPUS and torch.cuda.device_count() < 2:
        return ALONE
    return LEFT if time.monotonic() > deadline else None


@dataclass
class _Child:
    """The process of a mutant."""

    planted: Planted
    journal: Path
    work: Work
    hung: bool = False
    started: float = field(default_factory=time.monotonic)
    size: int = -1  # of the journal when it last grew; since when that is, and what the process had spent then
    since: float = 0.0
    spent: float = 0.0

    def __post_init__(self) -> None:
        self.process = _FORK.Process(target=_quietly, args=(self.journal, self.work))
        self.process.start()

    def ended(self) -> bool:
        """Whether the process is gone; ends it when it hangs."""
        if not self.process.is_alive():
            return True
        if not self.journal.exists():
            return False
        size = self.journal.stat().st_size
        if size != self.size:
            self.size, self.since, self.spent = size, time.monotonic(), _cpu_seconds(self.process.pid)
        waited = time.monotonic() - self.since
        if waited < self.work.patience:
            return False
        spent = _cpu_seconds(self.process.pid) - self.spent
        if spent < self.work.patience and waited < _WAITING * self.work.patience:
            return False  # the machine has other things to do
        self.hung = True
        self.process.kill()
        return True

    def outcome(self) -> Outcome:
        self.process.join()
        events = [event for event, _ in read(self.journal)] if self.journal.exists() else []
        last = {event["event"]: event for event in events}
        passed = {
            event["number"]: Passed(event["seconds"], frozenset(map(tuple, event["places"])))
            for event in events
            if event["event"] == PASSED
        }
        number, case = (last[CASE]["number"], last[CASE]["case"]) if CASE in last else (0, None)
        if killed := last.get(KILLED):
            smallest = last[SHRUNK]["case"] if SHRUNK in last else None
            seconds, checks, traits = round(killed["seconds"], 2), tuple(killed["checks"]), tuple(killed["traits"])
            message = killed["message"]
            return Outcome(self.planted, KILLED, checks, traits, number, seconds, message, case, smallest, passed)
        if survived := last.get(SURVIVED):
            seconds, message = round(survived["seconds"], 2), survived.get("message", "")
            return Outcome(self.planted, SURVIVED, seconds=seconds, message=message, passed=passed)
        seconds, code = round(time.monotonic() - self.started, 2), self.process.exitcode or 0
        if self.hung or code < 0:
            how = "it hung" if self.hung else f"its process died of {signal.Signals(-code).name}"
            traits = tuple(sorted(traits_of(Case.from_json(case)))) if case else ()
            return Outcome(self.planted, KILLED, ("alive",), traits, number, seconds, f"alive: {how}", case)
        message = last[BROKEN]["message"] if BROKEN in last else f"its process ended with status {code}"
        return Outcome(self.planted, BROKEN, (), (), number, seconds, message, case)


def _cpu_seconds(pid: int | None) -> float:
    """What a process, its own threads included, has had of the CPUs; 0 once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _quietly(path: Path, work: Work) -> None:
    """A mutant's process prints nothing: what it has to say is in its journal."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    work.function(*work.arguments, Journal(path.parent, path.stem))
