"""A kernel under test with all that a verdict on it takes, and what it gave along with the verdict."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import TypeGuard

import torch

from fuzz import formats
from fuzz.case import Case
from fuzz.checks import Finding, Verdict, judge, needs_device
from fuzz.checks.elsewhere import home_of
from fuzz.checks.invariance import INVARIANCES
from fuzz.sandbox import Sandbox
from fuzz.target import Target, Wrapped
from fuzz.tensorfile import LIMIT
from kernel.contract import Inputs

Tensors = dict[str, torch.Tensor]


class Recording(Wrapped):
    """A target that keeps what its first call gave, on the CPU."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.results: Tensors = {}

    def __call__(
        self, inputs: Inputs, output: torch.Tensor | None = None, lse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        results = self.target(inputs, output, lse)
        if not self.results:
            named = dict(zip(("output", "lse"), results, strict=True))
            self.results = {name: tensor.detach().cpu().clone() for name, tensor in named.items() if _is_plain(tensor)}
        return results


@dataclass(frozen=True, slots=True)
class Rig:
    """A test rig: a kernel under test, the promises that it is held to, and where it runs. The checks `also` are made
    besides those that a case draws."""

    target: Target
    device: str
    contract: frozenset[str]

    def verdict(self, case: Case, also: Set[str] = frozenset()) -> Verdict:
        """The verdict on a case."""
        if isinstance(self.target, Sandbox) and self._is_judged_inside(case, also):
            return _with_printed(self.target, self.target.judge(case, self.contract, also)[0])
        return self._judged(case, self.target, also)

    def recorded(self, case: Case, also: Set[str] = frozenset()) -> tuple[Verdict, Tensors]:
        """The verdict on a case, and what the kernel gave."""
        if isinstance(self.target, Sandbox) and self._is_judged_inside(case, also):
            verdict, observed = self.target.judge(case, self.contract, also, record=True)
            return _with_printed(self.target, verdict), observed
        recording = Recording(self.target)
        return self._judged(case, recording, also), recording.results

    def judge(self, case: Case, check: str) -> tuple[Verdict, Tensors]:
        """The verdict on a case, with `check` among the checks, and what the kernel gave."""
        return self.recorded(case, {check} & INVARIANCES.keys())

    def _judged(self, case: Case, target: Target, also: Set[str]) -> Verdict:
        if not isinstance(self.target, Sandbox):
            return judge(case, target, device=self.device, contract=self.contract, also=also)
        # the operands of a sandbox are on the CPU, wherever its kernel runs
        return _with_printed(self.target, judge(case, target, device="cpu", contract=self.contract, also=also))

    def _is_judged_inside(self, case: Case, also: Set[str]) -> bool:
        device = torch.device(self.device)
        return device.type == "cuda" and (home_of(case, device) == device or needs_device(case, self.contract, also))


def _with_printed(target: Sandbox, verdict: Verdict) -> Verdict:
    """The verdict, with what its calls have printed. Standard output belongs to those who serve with the kernel, and on
    a GPU printing means that the host waits."""
    if printed := target.take_printed():
        verdict.add("alive", Finding("alive", "it printed to standard output", cause="stdout", printed=printed))
    return verdict


def _is_plain(tensor: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Whether a result can be kept."""
    return (
        tensor is not None
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and tensor.dtype in formats.RESULTS
        and tensor.numel() * tensor.itemsize <= LIMIT
    )
