"""The driver of a run on a cluster: it hands out shards, gathers what they find, and ends the run on time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from fuzz.cluster.engine import Engine, Lost
from fuzz.cluster.gather import Gathered
from fuzz.cluster.host import News, Order
from fuzz.cluster.plan import Plan, command, part
from fuzz.dumps import Dumps
from fuzz.progress import Display
from fuzz.run import Run
from fuzz.watch import DUMP_INTERVAL, GRACE, INTERVAL, LAST_GRACE
from fuzz.words import counted

# Seconds between two news of a shard, for each shard that is at work: a driver has a few hundred of them a second to
# take in.
NEWS_SECONDS = 0.002
ROOM_SECONDS = 5.0  # how often the driver looks whether nodes came or went
LEAST_SECONDS = 5.0  # a shard that had less would end before its first case
INTERRUPT_SECONDS = 10.0  # what shards get to end after Ctrl-C
MAX_ATTEMPTS = 3  # at a shard
MAX_SETBACKS = 3  # for each shard that there is room for, one after the other without a case in between
PATIENCE = 300.0  # seconds without a node that runs anything


@dataclass(slots=True)
class Slot:
    """A host that was hired, the question it was asked last, and the shard it has."""

    host: Any
    question: str = "where"
    node: str = ""
    shard: int | None = None


class Driver:
    """Does the shards of a run that are not done yet. `stopped` is why it ended before that, or None."""

    def __init__(
        self, run: Run, plan: Plan, engine: Engine, gathered: Gathered, display: Display, program: tuple[str, ...]
    ) -> None:
        self._run = run
        self._plan = plan
        self._engine = engine
        self._gathered = gathered
        self._display = display
        self._program = program
        self._dumps = Dumps(run)
        self._slots: dict[Any, Slot] = {}  # by the answer that is awaited
        self._waiting = deque(sorted(gathered.begun.keys() - gathered.done))
        self._fresh = (shard for shard in range(plan.shards) if shard not in gathered.begun)
        self._unbegun = plan.shards - len(gathered.begun)
        self._losses: Counter[int] = Counter()
        self._setbacks = 0
        self._interrupted = False
        self._room = engine.slots()
        self._looked = self._dumped = self._heard = time.monotonic()
        self._kill_at = float("inf") if run.deadline is None else run.deadline + GRACE + LAST_GRACE

    @property
    def stopped(self) -> str | None:
        return self._gathered.totals.stopped

    def work(self) -> None:
        """Do shards until none is left or the run has to stop."""
        signal.signal(signal.SIGTERM, self._interrupt)  # no exception: it might come between two lines of a journal
        try:
            while self._hire() or self._slots:
                for answer in self._engine.ready(self._slots, INTERVAL):
                    self._hear(answer)
                self._look(time.monotonic())
        finally:
            for slot in self._slots.values():
                self._engine.fire(slot.host)
            self._display.close()

    def _interrupt(self, *_: object) -> None:
        self._interrupted = True

    def _hire(self) -> bool:
        """Hire a host for each shard that nobody has, as far as there is room; returns whether there is one."""
        left = len(self._waiting) + self._unbegun if self._may_begin() else 0
        if not left:
            self._dismiss()
            return False
        idle = sum(slot.shard is None for slot in self._slots.values())
        for _ in range(min(left - idle, self._room - len(self._slots))):
            self._ask(Slot(self._engine.hire()), "where")
        return True

    def _dismiss(self) -> None:
        """Let the hosts go that have no shard."""
        for answer, slot in list(self._slots.items()):
            if slot.shard is None:
                self._engine.fire(slot.host)
                del self._slots[answer]

    def _may_begin(self) -> bool:
        deadline = self._run.deadline
        return self.stopped is None and (deadline is None or time.monotonic() < deadline - LEAST_SECONDS)

    def _next(self) -> int | None:
        if self._waiting:
            return self._waiting.popleft()
        self._unbegun -= self._unbegun > 0
        return next(self._fresh, None)

    def _ask(self, slot: Slot, question: str, *values: Any) -> None:
        slot.question = question
        self._slots[getattr(slot.host, question).remote(*values)] = slot

    def _hear(self, answer: Any) -> None:
        """Take in an answer, and ask the host the next question."""
        slot = self._slots.pop(answer)
        try:
            value = self._engine.value(answer)
        except Lost as lost:
            self._lose(slot, f"node {slot.node} was lost", str(lost))
            return
        self._heard = time.monotonic()
        if slot.question == "news":
            assert slot.shard is not None
            self._gathered.take(slot.shard, value)
            self._setbacks = 0 if value.lines else self._setbacks
            if value.ended is not None:
                self._end(slot, value)
                return
        elif slot.question == "where":
            slot.node = value
            self._begin(slot)
            return
        self._ask(slot, "news", max(INTERVAL, NEWS_SECONDS * len(self._slots)))

    def _begin(self, slot: Slot) -> None:
        """Give a host a shard, or let it go."""
        shard = self._next() if self._may_begin() else None
        if shard is None:
            self._engine.fire(slot.host)
            return
        slot.shard = shard
        now = time.monotonic()
        one = part(self._run, self._plan, shard)
        one = dataclasses.replace(one, resumed=self._gathered.begun.get(shard, 0))
        order = Order(
            run=one.to_json(),
            journals=self._gathered.left(shard, now - self._run.started),
            processes=self._plan.processes,
            seconds=None if self._run.deadline is None else self._run.deadline - now,
            program=self._program,
            place=os.getcwd(),
        )
        self._ask(slot, "start", order)

    def _end(self, slot: Slot, news: News) -> None:
        """A shard has ended by itself."""
        assert slot.shard is not None
        if news.stopped == "all cases done":
            self._gathered.finish(slot.shard)
        elif news.stopped != "time limit" and self.stopped is None and not self._cannot_be_done():
            said = (news.said.strip().splitlines() or ["it said nothing"])[-1]
            self._lose(slot, f"its run on {slot.node} ended with status {news.ended}", said)
            return
        self._begin(slot)

    def _lose(self, slot: Slot, what: str, why: str) -> None:
        """A host is gone, and its shard has to go elsewhere."""
        self._engine.fire(slot.host)
        self._setbacks += 1
        if self.stopped is not None:
            return
        if slot.shard is not None:
            self._gathered.lose(slot.shard, what)
            alone = part(self._run, self._plan, slot.shard)
            self._gathered.write("warning", message=f"shard {alone.options.shard}: {what}: {why}")
            self._losses[slot.shard] += 1
            if self._losses[slot.shard] < MAX_ATTEMPTS:
                self._waiting.append(slot.shard)
            else:
                self._fail(f"shard {alone.options.shard} was lost {MAX_ATTEMPTS} times; alone it is: {command(alone)}")
        if self._setbacks >= MAX_SETBACKS * max(1, self._room):
            self._fail(f"nothing runs on the cluster: {why}")
            self._stop("now", "error")

    def _fail(self, message: str) -> None:
        self._gathered.write("error", usage=False, message=message)

    def _cannot_be_done(self) -> bool:
        return any(event["usage"] for event in self._gathered.totals.errors)

    def _stop(self, when: str, reason: str) -> None:
        """Begin nothing more, and let shards end: 'finish' after their searches, 'now' at once."""
        if self.stopped is None:
            self._gathered.write("stop", reason=reason)
        self._dismiss()
        for slot in self._slots.values():
            slot.host.stop.remote(when)

    def _look(self, now: float) -> None:
        """Show where the run is, and whether it has to stop."""
        options, totals = self._run.options, self._gathered.totals
        self._display.show(totals)
        if now > self._dumped + DUMP_INTERVAL:
            with contextlib.suppress(OSError):  # it is tried again, at the latest at the end
                self._dumps.update(totals)
            self._dumped = now
        if now > self._looked + ROOM_SECONDS:
            self._room, self._looked = self._engine.slots(), now
        if self._interrupted:
            self._interrupted = False
            self._kill_at = now + INTERRUPT_SECONDS
            self._stop("now", "interrupted")
        if totals.stopped is None:
            if self._cannot_be_done():
                self._stop("now", "error")
            elif options.max_failures is not None and totals.distinct() >= options.max_failures:
                self._stop("finish", f"{counted(options.max_failures, 'failure')} found")
            elif self._run.deadline is not None and now > self._run.deadline:
                self._stop("now", "time limit")
            elif now > self._heard + PATIENCE:
                self._fail(f"the cluster has been silent for {PATIENCE:.0f} s")
                self._stop("now", "error")
                self._kill_at = now
        if now > self._kill_at:
            for slot in self._slots.values():
                self._engine.fire(slot.host)
            self._slots.clear()
