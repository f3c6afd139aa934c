"""What a child of a sandbox does: it loads the kernel under test once, and runs it on case after case."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from fuzz.case import Case
from fuzz.checks.elsewhere import Elsewhere
from fuzz.checks.results import KernelRaised, run
from fuzz.loading import load
from fuzz.options import UsageError
from fuzz.rig import Rig
from fuzz.sandbox.shared import Memory, borrow, give
from fuzz.sandbox.wire import Ended, Message, receive, send
from fuzz.target import OPERANDS, Target
from kernel.contract import Inputs

# Bytes by which a call on the CPU may make its process grow. A correct kernel needs a small part of that on any case
# that is drawn for the CPU, one that gathers all keys of all requests included.
MEMORY = 4 << 30
_TENSORS = len(OPERANDS) - 1  # all operands but sm_scale
# What a thread gets to end after the call that started it.
_THREAD_GRACE = 0.2
_LIBC = ctypes.CDLL(None)


def main(answers: int, output: int, errors: int, memory: int) -> int:
    """Serve until the other side closes the socket; returns the exit status.

    answers  a socket for the messages: {"load": spec, "profile", "device"} first, then any number of calls
    output   where stdout goes, and `errors` where stderr does
    memory   the file of the memory that both sides share
    """
    os.setsid()  # Ctrl-C is for the worker
    _redirect(output, errors)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory runs out, it is the kernel that has to go
    messages = socket.socket(fileno=answers)
    with contextlib.suppress(Ended):
        asked, _ = receive(messages)
        try:
            target = load(asked["load"], asked["profile"])
        except UsageError as error:
            send(messages, {"refused": str(error)})
            return 0
        server = _Server(target, torch.device(asked["device"]), Memory(memory))
        send(messages, {"variants": target.tells_variants})
        while True:
            asked, files = receive(messages)
            answer = server.answer(asked, files)
            _flush()  # what the kernel printed is known before its answer
            send(messages, answer)
            for file in files:
                os.close(file)
    return 0


def _flush() -> None:
    """Hand on what Python and C still hold of what was printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError, OSError):  # the kernel may have closed it
            stream.flush()
    _LIBC.fflush(None)


def _redirect(output: int, errors: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for file, place in ((null, 0), (output, 1), (errors, 2)):
        os.dup2(file, place)
        os.close(file)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1, 2)  # tells where it hangs


class _Server:
    def __init__(self, target: Target, device: torch.device, memory: Memory) -> None:
        self._target, self._device, self._memory = target, device, memory
        if device.type == "cpu":
            torch.set_num_threads(1)

    def answer(self, asked: Message, files: list[int]) -> Message:
        """What a call, or a whole verdict, came to. `spent`: this process is in no state to go on."""
        threads = set(sys._current_frames())
        try:
            answer = self._verdict(asked) if "case" in asked else self._called(asked, files)
        except KernelRaised as error:
            answer = _raised(error)
        except Exception:
            answer = {"failed": traceback.format_exc()}
        except BaseException as error:  # sys.exit, in a verdict
            answer = _raised(KernelRaised.of(error))
        if left := _left_behind(threads):
            answer = _raised(KernelRaised("thread", f"{left} still runs after the call has returned"), spent=True)
        dead = any(finding["check"] == "alive" for finding in answer.get("findings", ()))
        if "failed" in answer or "raised" in answer or dead:
            problem = self._problem()
            if problem:
                answer = _raised(KernelRaised("cuda-error", problem), spent=True)
        return answer

    def _called(self, asked: Message, files: list[int]) -> Message:
        """What a call, or a question about it, comes to."""
        views = borrow(self._memory, asked["lent"], files)
        inputs = Inputs(**dict(zip(OPERANDS, views[:_TENSORS], strict=False)), sm_scale=asked["sm_scale"])
        on_device = self._device.type == "cuda"
        target = Elsewhere(self._target, self._device) if on_device else self._target
        if "variant" in asked:
            return {"variant": target.variant(inputs, asked["variant"])}
        offered = tuple(views[_TENSORS:]) if self._target.destination_passing else ()
        try:
            with contextlib.nullcontext() if on_device else _limited_memory():
                results = run(target, inputs, offered)
        except BaseException as error:
            raise KernelRaised.of(error) from error
        answer: Message = {}
        end = asked["end"]
        for name, result in zip(("output", "lse"), results, strict=True):
            if result is None:
                answer[name] = None
            elif any(result is one for one in offered):
                answer[name] = [result is one for one in offered].index(True)
            elif result.layout is not torch.strided or result.is_meta or result.is_quantized:
                kind = f"{result.dtype} tensor on {result.device} with the layout {result.layout}"
                raise KernelRaised("TypeError", f"{self._target.spec} returned {name} as a {kind}")
            else:
                answer[name], end = give(self._memory, result, end, asked["most"])
        return answer

    def _verdict(self, asked: Message) -> Message:
        """Judge a case in this process."""
        rig = Rig(self._target, str(self._device), frozenset(asked["contract"]))
        verdict, observed = rig.recorded(Case.from_json(asked["case"]), frozenset(asked["also"]))
        end, given = 0, {}
        for name, tensor in observed.items() if asked["record"] else ():
            given[name], end = give(self._memory, tensor, end, 1 << 62)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return verdict.to_json() | {"observed": given}

    def _problem(self) -> str:
        """Why the GPU can not be used any more, '' if it can."""
        if self._device.type == "cuda":
            try:
                torch.cuda.synchronize(self._device)
            except Exception as error:
                return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return ""


def _raised(error: KernelRaised, *, spent: bool = False) -> Message:
    return {"raised": str(error), "cause": error.cause, "spent": spent or error.cause == "memory"}


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    """Let this process grow by `MEMORY` bytes and no more. A GPU's driver reserves far more addresses than memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _left_behind(before: set[int]) -> str:
    """A Python thread that was not there before, by name; '' if there is none. Others, as OpenMP has them, may stay."""
    until = time.monotonic() + _THREAD_GRACE
    while left := set(sys._current_frames()) - before:
        if time.monotonic() > until:
            names = [thread.name for thread in threading.enumerate() if thread.ident in left]
            return f"the thread {names[0]}" if names else "a thread"
        time.sleep(0.01)
    return ""
