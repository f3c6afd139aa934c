"""The table of checks with their histograms, and the heat map of strata and checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fuzz.counts import Cell, Counts
from fuzz.coverage import by_family
from fuzz.demands import DEMANDS
from fuzz.files import number
from fuzz.report import charts
from fuzz.words import counted, ratio_text, short


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A check; `chart` is its histogram if it measures something."""

    name: str
    demand: str
    cases: int
    failed: int
    worst: str
    chart: Markup | None


def check_rows(summary: Mapping[str, Any], counts: Counts) -> list[CheckRow]:
    """The checks that ran, the most frequent first."""
    return [
        CheckRow(
            name,
            DEMANDS.get(name, ""),
            entry["cases"],
            entry["failed"],
            ratio_text(number(entry["worst_ratio"])),
            charts.histogram(name, counts.ratios[name]) if name in counts.ratios else None,
        )
        for name, entry in sorted(summary["checks"].items(), key=lambda item: (-item[1]["cases"], item[0]))
    ]


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A cell of the heat map: its text, what it means, and how strong its colour is, 0 to 1."""

    text: str
    meaning: str
    strength: float
    failed: bool


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A stratum, whether a case belonged to it, a cell for each check, and the worst ratios of output and LSE."""

    name: str
    met: bool
    cells: list[HeatCell]
    worst: list[str]


def heat_map(
    summary: Mapping[str, Any], counts: Counts, checks: list[CheckRow], reach: Mapping[str, str]
) -> dict[str, list[HeatRow]]:
    """Rows by family of strata, for those that were met or could have been; their columns are `checks`.

    reach  all strata, each with the reason why it is never drawn or ""
    """
    most = max((cell.cases for cell in counts.cells.values()), default=1)
    met = summary["strata"]

    def row(stratum: str) -> HeatRow:
        cells = [_cell(counts.cells.get((stratum, check.name), Cell()), stratum, check.name, most) for check in checks]
        entry = met.get(stratum, {})
        worst = [ratio_text(number(entry.get(f"worst_{result}_ratio"))) for result in ("output", "lse")]
        return HeatRow(stratum.partition(":")[2], stratum in met, cells, worst)

    return {family: list(map(row, strata)) for family, strata in by_family(reach, met).items()}


def _cell(cell: Cell, stratum: str, check: str, most: int) -> HeatCell:
    strength = math.log1p(cell.cases) / math.log1p(most)
    if cell.failed:
        meaning = f"{stratum}, {check}: {cell.failed:,} of {counted(cell.cases, 'case')} failed"
        return HeatCell(f"{short(cell.failed)}/{short(cell.cases)}", meaning, strength, failed=True)
    meaning = f"{stratum}, {check}: {counted(cell.cases, 'case')}"
    return HeatCell(short(cell.cases) if cell.cases else "", meaning, strength, failed=False)
