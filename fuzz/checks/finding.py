"""What a check says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fuzz.case import Case
from fuzz.files import number


@dataclass(frozen=True, slots=True)
class Finding:
    """One failed check, told by its worst element.

    index     where: (row, head, column) of output, (row, head) of lse, or None where no element is meant
    allowed   the interval that `got` had to lie in, where there is one
    ratio     distance from the expected value over what the bound allows; above 1, or inf where nothing is allowed
    rows      what kind of row it is: empty, boundary or interior
    variant   which of the kernel's variants computes that row, "" where it does not tell
    cause     of a call that did not return: the class of an exception, a signal, "timeout", ...
    printed   the last lines that the process of such a call printed
    """

    check: str
    detail: str
    index: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None
    allowed: tuple[float, float] | None = None
    ratio: float | None = None
    rows: str = "interior"
    variant: str = ""
    cause: str = ""
    printed: str = ""

    def to_json(self) -> dict[str, Any]:
        """Its fields, and the text of it as "message"."""
        return asdict(self) | {"message": str(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Finding:
        """The inverse of to_json, and of what `fuzz.files.strict` makes of that."""
        fields = {name: given for name, given in value.items() if name != "message"}
        fields |= {name: number(value[name]) for name in ("got", "expected", "ratio")}
        if value["index"] is not None:
            fields["index"] = tuple(value["index"])
        if value["allowed"] is not None:
            fields["allowed"] = tuple(map(number, value["allowed"]))
        return cls(**fields)

    def moved(self, rows: int) -> Finding:
        """The same finding where its index counts from `rows` rows earlier."""
        return self if self.index is None else replace(self, index=(self.index[0] + rows, *self.index[1:]))

    def at_rows(self, rows: Sequence[int]) -> Finding:
        """The same finding where its index counts among chosen rows, of which `rows` has the numbers."""
        return self if self.index is None else replace(self, index=(rows[self.index[0]], *self.index[1:]))

    def __str__(self) -> str:
        parts = [f"{self.check}: {self.detail}"]
        if self.index is not None:
            parts.append(f"at {list(self.index)}")
        if self.got is not None:
            parts.append(f"got {self.got!r}")
        if self.expected is not None:
            parts.append(f"expected {self.expected!r}")
        if self.allowed is not None:
            parts.append(f"allowed {self.allowed[0]!r} to {self.allowed[1]!r}")
        if self.ratio is not None:
            parts.append(f"ratio {self.ratio:.3g}")
        return ", ".join(parts)


@dataclass(slots=True)
class Verdict:
    """The result of one case, or of operands that are no case's.

    ran        each check that ran, with its worst observed/bound ratio where it has one
    findings   what failed
    """

    case: Case | None
    ran: dict[str, float | None] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return bool(self.findings)

    def add(self, check: str, finding: Finding | None = None, ratio: float | None = None) -> None:
        """Record that `check` ran, and what it found."""
        seen = self.ran.get(check)
        self.ran[check] = ratio if seen is None else seen if ratio is None else max(seen, ratio)
        if finding is not None:
            self.findings.append(finding)

    def include(self, other: Verdict) -> None:
        """Take over what another verdict on the same case says."""
        for check, ratio in other.ran.items():
            self.add(check, ratio=ratio)
        self.findings.extend(other.findings)

    def to_json(self) -> dict[str, Any]:
        """What ran and what was found, without the case."""
        return {"ran": dict(self.ran), "findings": [finding.to_json() for finding in self.findings]}

    @classmethod
    def from_json(cls, case: Case, value: Mapping[str, Any]) -> Verdict:
        """The inverse of to_json for a case, and of what `fuzz.files.strict` makes of that."""
        ran = {check: number(ratio) for check, ratio in value["ran"].items()}
        return cls(case, ran, [Finding.from_json(told) for told in value["findings"]])
