"""The worker's side of a sandbox: a kernel under test that is called like any other, and runs in a child process."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence, Set
from functools import cache
from typing import Any

import torch

from fuzz.case import Case
from fuzz.checks import Verdict
from fuzz.checks.results import KernelRaised
from fuzz.checks.storage import tensors
from fuzz.options import UsageError
from fuzz.sandbox.patience import LOADING, Patience
from fuzz.sandbox.shared import Memory, lend, take
from fuzz.sandbox.tail import Tail
from fuzz.sandbox.wire import Ended, Message, receive, send
from fuzz.spec import located
from kernel.contract import NUM_HEADS, Inputs
from reference.profile import PROFILES

# Bytes of a result that a child gives back, for each byte that it should have: float64 is four times bfloat16.
_LARGEST = 4
_ANSWER_SECONDS = 30.0  # that an answer may take once it has begun
_DYING_SECONDS = 2.0  # that a process may take to end after it has closed its socket
_TRACE_SECONDS = 0.3  # that a process which hangs gets to say where


class Sandbox:
    """A kernel under test in a child process, which is warm between calls and replaced when it is not fit for another.

    Called like a `fuzz.target.Target`, always with CPU tensors: they travel in shared memory, and the child copies them
    to its GPU if it has one. Whatever the kernel does to its process is a KernelRaised of the call that did it.

    spec, profile  as for `fuzz.loading.load`
    device         "cpu" or "cuda"

    Raises:
        UsageError: the kernel cannot be loaded, or loading it kills its process.
    """

    # True, as every call is offered buffers. The memory that another kernel takes is poisoned by its own process.
    destination_passing = True

    def __init__(self, spec: str, profile: str, device: str) -> None:
        self.spec, self.profile, self.device = spec, PROFILES[profile], device
        self.patience = Patience(device)
        located(spec)
        self._nursery = _nursery_of(os.getpid())
        self._child: _Child | None = None
        self._tells_variants = False
        self._printed = ""
        try:
            self._warm()
        except _Dead as error:
            reason = f"{error.reason} while it was loaded" + (f": {error.printed}" if error.printed else "")
            raise UsageError(f"--kernel {spec}: {' '.join(reason.split())}") from error

    def __call__(
        self, inputs: Inputs, output: torch.Tensor | None = None, lse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the kernel once. Raises KernelRaised, also where it crashes, hangs or exits."""
        child = self._ready()
        offered = [buffer for buffer in (output, lse) if buffer is not None]
        lent = lend(child.memory, [*tensors(inputs).values(), *offered])
        most = _LARGEST * inputs.total_q * NUM_HEADS * inputs.q_nope.shape[-1] * inputs.q_nope.itemsize
        asked = {"lent": lent.message, "end": lent.end, "sm_scale": inputs.sm_scale, "most": most}
        answer = self._ask(asked, lent.files, self.patience.call(inputs))
        lent.take_back()
        self._printed = self._printed or child.output.text()

        def result(told: Any) -> torch.Tensor:
            return offered[told] if isinstance(told, int) else take(child.memory, told)

        return result(answer["output"]), None if answer["lse"] is None else result(answer["lse"])

    def variant(self, inputs: Inputs, row: int) -> str:
        """See `fuzz.target.Target.variant`; "" also where telling it kills the child."""
        child = self._ready()
        if not self._tells_variants:
            return ""
        lent = lend(child.memory, list(tensors(inputs).values()))
        asked = {"variant": row, "lent": lent.message, "sm_scale": inputs.sm_scale}
        try:
            return str(self._ask(asked, lent.files, self.patience.call(inputs))["variant"])
        except KernelRaised:
            return ""

    def judge(
        self, case: Case, contract: Set[str], also: Set[str], *, record: bool = False
    ) -> tuple[Verdict, dict[str, torch.Tensor]]:
        """Have the child judge a case itself, as `fuzz.checks.judge` does, on its own device; with `record`, also what
        the kernel gave at first. For cases that are judged on a GPU, and checks that need its streams."""
        child = self._ready()
        asked = {"case": case.to_json(), "contract": sorted(contract), "also": sorted(also), "record": record}
        try:
            answer = self._ask(asked, (), self.patience.verdict())
        except KernelRaised as error:
            return Verdict(case, {"alive": None}, [error.finding()]), {}
        self._printed = self._printed or child.output.text()
        observed = {name: take(child.memory, told) for name, told in answer["observed"].items()}
        return Verdict.from_json(case, answer), observed

    def take_printed(self) -> str:
        """The last lines that calls since the last one of this have printed to standard output; "" for none."""
        printed, self._printed = self._printed, ""
        return printed

    def close(self) -> None:
        """End the child. Not needed before this process ends: no child outlives it."""
        if self._child is not None:
            self._child.close()
            self._nursery.reap(self._child.pid, _DYING_SECONDS)
            self._child = None

    def _ready(self) -> _Child:
        try:
            return self._warm()
        except _Dead as error:
            raise RuntimeError(f"{self.spec} could be loaded, but not once more: {error.reason}") from error

    def _warm(self) -> _Child:
        """The child, a new one where there is none."""
        if self._child is None:
            self._child = self._nursery.fork()
            asked = {"load": self.spec, "profile": self.profile.name, "device": self.device}
            answer = self._talk(asked, (), LOADING)
            if "refused" in answer:
                raise UsageError(answer["refused"])
            self._tells_variants = answer["variants"]
        return self._child

    def _ask(self, asked: Message, files: Sequence[int], seconds: float) -> Message:
        """The answer of the child. Raises KernelRaised, and drops the child if it is not fit for another call."""
        began = time.monotonic()
        child = self._child
        assert child is not None
        try:
            answer = self._talk(asked, files, seconds)
        except _Dead as death:
            if death.cause == "timeout":
                self.patience.hung()
            raise KernelRaised(death.cause, death.reason, death.printed) from None
        self.patience.took(time.monotonic() - began)
        if "failed" in answer:
            raise RuntimeError(f"the judge failed in the child process:\n{answer['failed']}")
        if "raised" in answer:
            error = KernelRaised(answer["cause"], answer["raised"], child.said())
            if answer["spent"]:
                self._drop(0)
            raise error
        for told in answer.get("findings", ()):
            if told["check"] == "alive":
                told["printed"] = child.said()
                if told["cause"] == "memory":
                    self._drop(0)
        return answer

    def _talk(self, asked: Message, files: Sequence[int], seconds: float) -> Message:
        """Send a message and wait for the answer. Raises _Dead where none comes; then the child is gone."""
        child = self._child
        assert child is not None
        try:
            return child.ask(asked, files, seconds)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGUSR1)
            time.sleep(_TRACE_SECONDS)
            child.listen()
            self._drop(0)
            raise _Dead("timeout", f"it did not return within {seconds:.0f} s", child.said()) from None
        except Ended:
            status = self._drop(_DYING_SECONDS)
            child.listen()
            raise _Dead(*_death(status), child.said()) from None
        except BaseException:  # Ctrl-C: an answer that comes later would be taken for the next one
            self._drop(0)
            raise

    def _drop(self, patience: float) -> int | None:
        """Let the child end within some seconds, or kill it; returns its status if it ended by itself."""
        child, self._child = self._child, None
        assert child is not None
        child.messages.close()
        status = self._nursery.reap(child.pid, patience)
        child.listen()
        child.close()
        return status


class _Dead(Exception):
    """The child is gone: cause, reason in words, and what it had printed last."""

    def __init__(self, cause: str, reason: str, printed: str) -> None:
        super().__init__(cause, reason, printed)
        self.cause, self.reason, self.printed = cause, reason, printed


def _death(status: int | None) -> tuple[str, str]:
    """Cause and reason of an end with a status as os.waitpid gives it."""
    if status is None:
        return "closed", "its process closed its connection"
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        memory = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return name, f"its process died of {name}{memory}"
    code = os.waitstatus_to_exitcode(status)
    return f"exit-{code}", f"its process ended with exit status {code}"


class _Child:
    """A process that runs the kernel."""

    def __init__(self, pid: int, messages: socket.socket, output: int, errors: int, memory: Memory) -> None:
        self.pid, self.messages, self.memory = pid, messages, memory
        self.output, self.errors = Tail(output), Tail(errors)
        self.messages.settimeout(_ANSWER_SECONDS)

    def ask(self, asked: Message, files: Sequence[int], seconds: float) -> Message:
        """Raises TimeoutError if no answer comes in that time, Ended if none will."""
        self.listen()
        for tail in self._tails:
            tail.clear()
        send(self.messages, asked, files)
        until = time.monotonic() + seconds
        waiting = select.poll()
        waiting.register(self.messages, select.POLLIN)
        tails = {tail.file: tail for tail in self._tails if tail.is_open}
        for file in tails:
            waiting.register(file, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            for file, _ in waiting.poll(1000 * left):
                if file == self.messages.fileno():
                    self.listen()
                    return receive(self.messages)[0]
                if not tails[file].read():
                    waiting.unregister(file)
        raise TimeoutError

    def listen(self) -> None:
        """Read what it has printed."""
        for tail in self._tails:
            tail.read()

    def said(self) -> str:
        """The last lines that it printed."""
        return "\n".join(text for tail in self._tails if (text := tail.text()))

    @property
    def _tails(self) -> tuple[Tail, Tail]:
        return self.output, self.errors

    def close(self) -> None:
        self.messages.close()
        for tail in self._tails:
            tail.close()
        self.memory.close()


@cache
def _nursery_of(pid: int) -> _Nursery:
    """The nursery of this process, one for all its sandboxes: it takes as long to start as torch to import."""
    return _Nursery()


class _Nursery:
    """The process that forks the children, see `fuzz.sandbox.nursery`; started for the first of them."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from fuzz.sandbox.nursery import main;"
            f" main({os.getpid()}, {theirs.fileno()})"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the worker
        )
        theirs.close()
        self.pid = process.pid
        self._requests = ours
        self._sockets = weakref.WeakSet([ours])
        weakref.finalize(self, _end, process, self._sockets)

    def fork(self) -> _Child:
        memory = Memory()
        ours, theirs = socket.socketpair()
        (output, printed), (errors, complained) = os.pipe(), os.pipe()
        try:
            asked = {"fork": {"directory": os.getcwd(), "path": sys.path}}
            send(self._requests, asked, [theirs.fileno(), printed, complained, memory.file])
            pid = receive(self._requests)[0]["pid"]
        finally:
            theirs.close()
            os.close(printed)
            os.close(complained)
        self._sockets.add(ours)
        return _Child(pid, ours, output, errors, memory)

    def reap(self, pid: int, patience: float) -> int | None:
        """Wait for a child, and kill it after some seconds; returns its status if that was not needed."""
        send(self._requests, {"reap": pid, "patience": patience})
        status: int | None = receive(self._requests)[0]["status"]
        return status


def _end(process: subprocess.Popen[bytes], sockets: weakref.WeakSet[socket.socket]) -> None:
    """The nursery ends when its socket is closed, and kills children that have not."""
    for each in sockets:
        each.close()
    try:
        process.wait(_DYING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
