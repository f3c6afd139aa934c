"""A case with what the kernel under test gave for it, for the checks that call the kernel once more."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fuzz.build import build
from fuzz.case import Case
from fuzz.checks.elsewhere import Elsewhere
from fuzz.checks.finding import Finding, Verdict
from fuzz.checks.numeric import check_numbers
from fuzz.checks.results import Results, bits
from fuzz.checks.storage import copy_of, tensors
from fuzz.hashing import key, mix
from fuzz.target import Target
from kernel.contract import Inputs


@dataclass(frozen=True)
class Trial:
    """A case, its operands, and what the kernel under test gave for them."""

    case: Case | None  # None: the operands are no case's
    target: Target
    inputs: Inputs
    results: Results
    contract: frozenset[str]
    device: torch.device  # where the kernel runs; the operands may be elsewhere

    @property
    def generated(self) -> Case:
        """The case, for the checks that build operands from it; they do not run where there is none."""
        assert self.case is not None
        return self.case

    def draw(self, name: str, bound: int) -> int:
        """A number 0 .. bound - 1 that follows from the case."""
        return mix(key(0 if self.case is None else self.case.seed, name)) % bound

    def on_device(self) -> tuple[Target, Inputs]:
        """The kernel under test itself, and a copy of the operands that it can be called with."""
        target = self.target.target if isinstance(self.target, Elsewhere) else self.target
        return target, copy_of(self.inputs, self.device)

    def same(self, check: str, changed: str, results: Results, rows: torch.Tensor | None = None) -> Verdict:
        """What `results` say after a change that must not matter, or must not in `rows` (bool [total_q])."""
        results = results.on(self.inputs.device)
        if "repeatable" in self.contract:
            verdict = Verdict(self.case)
            verdict.add(check, different_bits(check, changed, self.results, results, rows))
            return verdict
        return self.numbers(check, changed, self.inputs, results, rows)

    def numbers(
        self, check: str, changed: str, inputs: Inputs, results: Results, rows: torch.Tensor | None = None
    ) -> Verdict:
        """What the numeric checks say of `results` for `inputs`, under the name of `check`."""
        plain, verdict = Verdict(self.case), Verdict(self.case)
        check_numbers(plain, inputs, results.on(inputs.device), rows, self.target.profile)
        for finding in plain.findings[:1]:
            verdict.add(check, replace(finding, check=check, detail=f"{changed}: {finding.check}: {finding.detail}"))
        verdict.add(check)
        return verdict


def renew(inputs: Inputs, case: Case) -> float:
    """Put the values of `case` into the tensors of `inputs`, which have its shapes and layout; returns its sm_scale."""
    new = build(case, inputs.device)
    for name, tensor in tensors(inputs).items():
        plain(tensor).copy_(plain(getattr(new, name)))
    return new.sm_scale


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without repeated elements, so that it can be written."""
    index = tuple(slice(0, 1) if stride == 0 and size > 1 else slice(None)
                  for size, stride in zip(tensor.shape, tensor.stride(), strict=True))  # fmt: skip
    return tensor[index]


def different_bits(
    check: str, changed: str, first: Results, second: Results, rows: torch.Tensor | None
) -> Finding | None:
    """The first element of `rows` whose bits differ; any NaN equals any other."""
    here, there = first.named(), second.named()
    for name in dict.fromkeys((*here, *there)):
        if name not in here or name not in there:
            return Finding(check, f"{changed}: {name} is given in one call and not in the other")
        one, other = here[name], there[name]
        if one.shape != other.shape or one.dtype != other.dtype:
            return Finding(check, f"{changed}: {name} has another form, {tuple(other.shape)} {other.dtype}")
        if torch.equal(bits(one), bits(other)):
            continue
        different = (bits(one) != bits(other)) & ~(one.isnan() & other.isnan())
        if rows is not None:
            different[~rows] = False
        if different.any():
            where = tuple(different.nonzero()[0].tolist())
            count = int(different.sum())
            detail = f"{changed}: {count} of {different.numel()} elements of {name} have other bits"
            return Finding(check, detail, where, other[where].item(), one[where].item())
    return None
