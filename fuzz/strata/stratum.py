"""What every stratum has."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stratum:
    """One way to choose one side of a case.

    doc     one line: what it is and which mistake it reveals
    source  fault classes (F..) of the kernels in this family, and public reports where one shows the mistake
    """

    doc: str
    source: str
