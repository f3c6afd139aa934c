"""The worker's side of a sandbox: a kernel under test that is called like any other, and runs in a child process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence, Set
from typing import Any

import torch

from fuzz.case import Case
from fuzz.checks import Verdict
from fuzz.checks.results import KernelRaised
from fuzz.checks.storage import tensors
from fuzz.options import UsageError
from fuzz.sandbox.children import DYING_SECONDS, Child, nursery
from fuzz.sandbox.patience import LOADING, Patience
from fuzz.sandbox.shared import lend, take
from fuzz.sandbox.wire import Ended, Message
from fuzz.spec import located
from kernel.contract import NUM_HEADS, Inputs
from reference.profile import PROFILES

# Bytes of a result that a child gives back, for each byte that it should have: float64 is four times bfloat16.
_LARGEST = 4
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
        self._nursery = nursery()
        self._child: Child | None = None
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
            self._nursery.reap(self._child.pid, DYING_SECONDS)
            self._child = None

    def _ready(self) -> Child:
        try:
            return self._warm()
        except _Dead as error:
            raise RuntimeError(f"{self.spec} could be loaded, but not once more: {error.reason}") from error

    def _warm(self) -> Child:
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
            status = self._drop(DYING_SECONDS)
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
