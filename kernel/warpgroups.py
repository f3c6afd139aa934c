"""Warpgroups that share memory, on a CPU: who may run, and whether what they do is ordered.

What a GPU would leave to chance is an error here, in whatever order the warpgroups happen to run. Each access to shared
memory has to be ordered by barriers after those that it conflicts with (vector clocks, as in FastTrack: Flanagan and
Freund 2009). Copies land at any time before the arrival that follows them. A product reads its operands until it is
waited for, and what threads or copies wrote needs a fence before it does.
"""

from __future__ import annotations

import linecache
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MARK = "__warpgroups__"  # among the global names of a kernel's functions, and of nothing else


class SharedMemoryError(Exception):
    """The kernel leaves something to chance, or its warpgroups wait for each other."""


@dataclass(eq=False)
class Warpgroup:
    """One of those that run at the same time.

    clock    of each warpgroup, how many of its arrivals this one knows to come before what it does next
    flying   products that it has not waited for, oldest first
    copies   what it has copied since the last arrival that follows copies
    """

    name: str
    index: int
    clock: list[int]
    flying: list[Product] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    ready: Callable[[], bool] = lambda: True
    where: str = ""
    done: bool = False
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def knows(self, other: Warpgroup, time: int) -> bool:
        return other is self or time <= self.clock[other.index]

    def learn(self, clock: Sequence[int]) -> None:
        self.clock = _latest(self.clock, clock)


@dataclass(eq=False)
class Product:
    """A product of matrices in shared memory, which reads them until it is waited for.

    ended  time of its warpgroup at that
    flaw   why its result is undefined, '' if it is not
    used   somebody looked at the result
    """

    by: Warpgroup
    ended: int | None = None
    flaw: str = ""
    used: bool = False

    def spoil(self, flaw: str) -> None:
        """A product on operands that change is no error as long as nobody looks at the result."""
        self.flaw = self.flaw or flaw
        if self.used:
            raise SharedMemoryError(self.flaw)

    def use(self) -> None:
        self.used = True
        if self.flaw:
            raise SharedMemoryError(self.flaw)


@dataclass(eq=False)
class Region:
    """A piece of shared memory that is used as a whole, and what was done with it since it was written last.

    landed  unless copies are under way
    fenced  what was written can be seen by products
    """

    name: str
    writer: Warpgroup | None = None
    written: int = 0
    landed: bool = True
    fenced: bool = True
    readers: dict[Warpgroup, int] = field(default_factory=dict)
    products: list[Product] = field(default_factory=list)

    def write(self, by: Warpgroup, *, landed: bool) -> None:
        """Note that threads of a warpgroup write, or start copies."""
        if problem := self._problem(by):
            raise SharedMemoryError(f"{by.name} writes {self.name}, {problem}: {position()}")
        for product in self.products:
            if product.ended is None or not by.knows(product.by, product.ended):
                product.spoil(
                    f"{by.name} writes {self.name}, and nothing says that a product of {product.by.name} is through"
                    f" with it: {position()}"
                )
        for reader, time in self.readers.items():
            if not by.knows(reader, time):
                raise SharedMemoryError(
                    f"{by.name} writes {self.name}, and nothing says that {reader.name} has read it: {position()}"
                )
        self.writer, self.written, self.landed, self.fenced = by, by.clock[by.index], landed, False
        self.readers, self.products = {}, []

    def read(self, by: Warpgroup) -> None:
        """Note that threads of a warpgroup read."""
        if problem := self._problem(by):
            raise SharedMemoryError(f"{by.name} reads {self.name}, {problem}: {position()}")
        self.readers[by] = by.clock[by.index]

    def multiply(self, product: Product) -> None:
        """Note that a product begins to read."""
        problem = self._problem(product.by) or ("" if self.fenced else "and no fence comes before")
        if problem:
            product.spoil(f"{product.by.name} multiplies {self.name}, {problem}: {position()}")
        else:
            self.products.append(product)

    def is_known_to(self, by: Warpgroup) -> bool:
        """Whether what was written last is there for a warpgroup."""
        return not self._problem(by)

    def _problem(self, by: Warpgroup) -> str:
        if self.writer is None or (self.landed and by.knows(self.writer, self.written)):
            return ""
        if not self.landed:
            return f"where copies of {self.writer.name} may not have landed"
        return f"and nothing says that {self.writer.name} has written it"


@dataclass(eq=False)
class Copy:
    """A copy that has not landed: where to, and what."""

    region: Region
    place: np.ndarray
    values: np.ndarray

    def land(self) -> None:
        self.place[...] = self.values
        self.region.landed = True


class Barrier:
    """An mbarrier: a phase is over when `count` have arrived."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.phases = self.arrived = 0
        self._coming: list[int] = []
        self.known: list[int] = []  # to those who have waited for the last phase

    def arrive(self, clock: Sequence[int], count: int) -> None:
        """What comes before the arrival is known to all that wait for the phase."""
        self._coming = _latest(clock, self._coming)
        self.arrived += count
        if self.arrived > self.count:
            raise SharedMemoryError(f"{self.arrived} arrivals at a barrier of {self.count}: {position()}")
        if self.arrived == self.count:
            self.phases += 1
            self.arrived, self.known, self._coming = 0, self._coming, []

    def is_over(self, parity: int) -> bool:
        """Whether the last phase that is over has this parity; before the first one that is 1."""
        return (self.phases - 1) % 2 == parity


def _latest(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Of two clocks; the other may be empty."""
    return list(map(max, one, other)) if other else list(one)


class _Cancelled(BaseException):
    """Another warpgroup has failed."""


class Team:
    """Warpgroups that run one at a time, each in a thread of its own; `seed` decides the order."""

    def __init__(self, names: Sequence[str], seed: int) -> None:
        self.members = [Warpgroup(name, i, [0] * len(names)) for i, name in enumerate(names)]
        for member in self.members:
            member.clock[member.index] = 1
        self.current = self.members[0]
        self._unfenced: set[Region] = set()
        self._random = random.Random(seed)
        self._arriving: list[Callable[[], None]] = []
        self._failure: BaseException | None = None
        self._over = threading.Semaphore(0)

    def run(self, bodies: Sequence[Callable[[], Any]]) -> None:
        """Run the warpgroups to their ends. Raises what the first of them to fail raised."""
        threads = [threading.Thread(target=self._run, args=pair) for pair in zip(self.members, bodies, strict=True)]
        for thread in threads:
            thread.start()
        self.members[0].baton.release()
        self._over.acquire()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def write(self, region: Region, *, landed: bool) -> None:
        """Note that the current warpgroup writes, or starts copies that are yet to land."""
        region.write(self.current, landed=landed)
        self._unfenced.add(region)

    def fence(self) -> None:
        """What is known to be written may be multiplied."""
        for region in list(self._unfenced):
            if region.is_known_to(self.current):
                region.fenced = True
                self._unfenced.remove(region)

    def arrive(self, barrier: Barrier, count: int) -> None:
        """Arrive now."""
        me = self.current
        clock = list(me.clock)
        me.clock[me.index] += 1
        barrier.arrive(clock, count)
        self._pass_on(lambda: True)

    def arrive_after_copies(self, barrier: Barrier, count: int) -> None:
        """Arrive when all copies so far have landed, which may be much later."""
        me = self.current
        copies, me.copies = me.copies, []
        clock = list(me.clock)
        me.clock[me.index] += 1

        def land() -> None:
            for copy in copies:
                copy.land()
            barrier.arrive(clock, count)

        self._arriving.append(land)
        self._pass_on(lambda: True)

    def wait(self, barrier: Barrier, parity: int) -> None:
        me = self.current
        me.where = position()
        self._pass_on(lambda: barrier.is_over(parity))
        me.learn(barrier.known)

    def _run(self, me: Warpgroup, body: Callable[[], Any]) -> None:
        me.baton.acquire()
        try:
            if self._failure is None:
                with np.errstate(all="ignore"):
                    body()
                if me.flying:
                    raise SharedMemoryError(f"{me.name} ends with products that it has not waited for")
        except _Cancelled:
            pass
        except BaseException as error:
            self._failure = self._failure or error
        me.done = True
        self._next(lambda: None)

    def _pass_on(self, ready: Callable[[], bool]) -> None:
        me = self.current
        me.ready = ready
        self._next(me.baton.acquire)
        if self._failure is not None:
            raise _Cancelled

    def _next(self, sleep: Callable[[], Any]) -> None:
        """Choose who is next, and let it run."""
        me = self.current
        chosen = self._choose()
        if chosen is me and not me.done:
            return
        if chosen is None:
            self._over.release()
        else:
            self.current = chosen
            chosen.baton.release()
        sleep()

    def _choose(self) -> Warpgroup | None:
        left = [member for member in self.members if not member.done]
        if self._failure is not None:
            return left[0] if left else None
        while left:
            # Copies land in order, and at any time.
            if self._arriving and self._random.random() < 0.3:
                self._land()
            able = [member for member in left if member.ready()]
            if able or self._failure is not None:
                return self._random.choice(able or left)
            if not self._arriving:
                waits = "; ".join(f"{member.name} in {member.where}" for member in left)
                self._failure = SharedMemoryError(f"all wait for each other: {waits}")
                return left[0]
            self._land()
        return None

    def _land(self) -> None:
        """Let the oldest copies land and arrive. Whoever runs now is not to blame, and may have ended."""
        try:
            self._arriving.pop(0)()
        except SharedMemoryError as error:
            self._failure = error


def position() -> str:
    """The lines of the kernel that led here, innermost first."""
    return " < ".join(f"{frame.f_code.co_name}:{frame.f_lineno}" for frame in _kernel_frames())


def assigned() -> str:
    """What the kernel's current lines assign to, outermost first: even.left."""
    lines = [linecache.getline(frame.f_code.co_filename, frame.f_lineno) for frame in _kernel_frames()]
    return ".".join(line.partition("=")[0].strip() for line in reversed(lines))


def _kernel_frames() -> Iterator[types.FrameType]:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if MARK in frame.f_globals:
            yield frame
        frame = frame.f_back
