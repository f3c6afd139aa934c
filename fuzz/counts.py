"""What the cases of a run covered, counted for the report: which checks met which strata, how close results came to
their bounds, which lengths were tried, and how fast it went. The size of it all does not depend on that of the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from fuzz.strata.lengths import TILE_KEYS

# Ratios observed/bound in bins of a quarter decade, (10^(b/4), 10^((b+1)/4)] for bin b; the first and the last bin are
# open, and the last one holds what is infinite or NaN as well. Bin -1 ends at 1, where the bound is.
BINS_PER_DECADE = 4
FIRST_BIN, LAST_BIN = -4 * BINS_PER_DECADE - 1, 4 * BINS_PER_DECADE
# Time goes into bins that double in width when there are more than this.
_TIME_BINS = 120


@dataclass(slots=True)
class Cell:
    """How often a check ran on cases of a stratum, and how often it failed there."""

    cases: int = 0
    failed: int = 0


@dataclass(slots=True)
class Pace:
    """How many cases ended in each stretch of `width` seconds."""

    width: float = 1.0
    cases: list[int] = field(default_factory=list)

    def add(self, at: float) -> None:
        while at >= self.width * _TIME_BINS:
            self.width *= 2
            self.cases = [sum(self.cases[i : i + 2]) for i in range(0, len(self.cases), 2)]
        index = int(at / self.width)
        self.cases += [0] * (index + 1 - len(self.cases))
        self.cases[index] += 1


@dataclass(slots=True)
class Counts:
    """Counts over generated cases.

    cells      (stratum, check) -> how often
    ratios     check -> cases by bin of the worst observed/bound ratio
    residues   "kv_len" and "prefix" -> cases with a request of that length mod 64, by residue; requests without queries
               or with fewer keys than queries do not count
    lengths    (bits of q_len, bits of kv_len) -> cases with a request of that size; 0 bits is length 0, n bits are the
               lengths from 2^(n-1) up to 2^n
    """

    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    ratios: dict[str, Counter[int]] = field(default_factory=dict)
    residues: dict[str, Counter[int]] = field(default_factory=lambda: {"kv_len": Counter(), "prefix": Counter()})
    lengths: Counter[tuple[int, int]] = field(default_factory=Counter)
    pace: Pace = field(default_factory=Pace)

    def add(
        self, case: Mapping[str, Any], strata: Iterable[str], ratios: Mapping[str, float | None], failed: Set[str]
    ) -> None:
        """Count a case: its JSON, its strata, the ratio of each check that ran, and the checks that failed."""
        for stratum in strata:
            for check in ratios.keys() | failed:
                cell = self.cells.setdefault((stratum, check), Cell())
                cell.cases += 1
                cell.failed += check in failed
        for check, ratio in ratios.items():
            if ratio is not None:
                self.ratios.setdefault(check, Counter())[bin_of(ratio)] += 1
        runs = case.get("lengths", [])
        self.lengths.update({(q_len.bit_length(), kv_len.bit_length()) for _, q_len, kv_len in runs})
        aligned = [(kv_len, kv_len - q_len) for _, q_len, kv_len in runs if 0 < q_len <= kv_len]
        self.residues["kv_len"].update({kv_len % TILE_KEYS for kv_len, _ in aligned})
        self.residues["prefix"].update({prefix % TILE_KEYS for _, prefix in aligned})


def bin_of(ratio: float) -> int:
    """The bin of a ratio."""
    if not math.isfinite(ratio):
        return LAST_BIN
    if ratio <= 0:
        return FIRST_BIN
    return min(max(math.ceil(BINS_PER_DECADE * math.log10(ratio)) - 1, FIRST_BIN), LAST_BIN)
