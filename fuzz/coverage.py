"""What the cases of a run came to, of all that they could: strata, and residues of lengths at the edges of tiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fuzz.strata.lengths import TILE_KEYS
from fuzz.totals import Totals


def edges(tile: int) -> tuple[int, int, int]:
    """The residues of a length at the edge of a tile."""
    return 0, 1, tile - 1


def by_family(reach: Mapping[str, str], met: Iterable[str]) -> dict[str, list[str]]:
    """Strata that cases belonged to, or could have, in their families.

    reach  all strata, each with the reason why it is never drawn or ""
    """
    families: dict[str, list[str]] = {}
    for stratum in dict.fromkeys([*(name for name, reason in reach.items() if not reason), *met]):
        families.setdefault(stratum.partition(":")[0], []).append(stratum)
    return families


def never_drawn(reach: Mapping[str, str], met: Iterable[str]) -> dict[str, list[str]]:
    """Strata that no case could belong to, by the reason."""
    met = set(met)
    reasons: dict[str, list[str]] = {}
    for stratum, reason in reach.items():
        if reason and stratum not in met:
            reasons.setdefault(reason, []).append(stratum)
    return reasons


def table(totals: Totals) -> Iterator[str]:
    """Lines: the strata of each family with their cases per 1,000, residues, and what was never drawn and why."""
    if not totals.cases:
        return
    yield "cases per 1,000:"
    for family, strata in by_family(totals.reach, totals.strata).items():
        counts = {name: totals.strata[name].cases if name in totals.strata else 0 for name in strata}
        yield f"  {family}: {_rates({name.partition(':')[2]: n for name, n in counts.items()}, totals.cases)}"
    for what, residues in totals.counts.residues.items():
        hits = {str(edge): residues.get(edge, 0) for edge in edges(TILE_KEYS)}
        yield f"  {what} mod {TILE_KEYS}: {_rates(hits, totals.cases)}"
    for reason, names in never_drawn(totals.reach, totals.strata).items():
        yield f"  not run: {', '.join(names)}: {reason}"


def _rates(counts: Mapping[str, int], cases: int) -> str:
    return ", ".join(f"{name} {1000 * count / cases:.0f}" for name, count in counts.items())
