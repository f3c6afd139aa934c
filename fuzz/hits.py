"""The table that a run ends with: how often each stratum and each residue of a tile came up, per 1,000 cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fuzz.strata.lengths import TILE_KEYS
from fuzz.totals import Totals

_EDGES = (0, 1, TILE_KEYS - 1)


def hits(totals: Totals) -> Iterator[str]:
    """Lines: the strata of each family with their cases per 1,000, residues, and what was never drawn and why."""
    if not totals.cases:
        return
    families: dict[str, dict[str, int]] = {}
    for name in totals.reach or totals.strata:
        family, _, stratum = name.partition(":")
        if not totals.reach.get(name):
            families.setdefault(family, {})[stratum] = totals.strata[name].cases if name in totals.strata else 0
    for what, residues in totals.counts.residues.items():
        families[f"{what} mod {TILE_KEYS}"] = {str(edge): residues.get(edge, 0) for edge in _EDGES}
    yield "cases per 1,000:"
    for family, counts in families.items():
        yield f"  {family}: {_per_thousand(counts, totals.cases)}"
    never: dict[str, list[str]] = {}
    for name, reason in totals.reach.items():
        if reason:
            never.setdefault(reason, []).append(name)
    for reason, names in never.items():
        yield f"  not run: {', '.join(names)}: {reason}"


def _per_thousand(counts: Mapping[str, int], cases: int) -> str:
    return ", ".join(f"{name} {1000 * count / cases:.0f}" for name, count in counts.items())
