"""Which strata a run can draw at all, so that those it never ran are known by name and reason."""

from collections.abc import Iterable

from fuzz.case import FAMILIES
from fuzz.strata.strategy import Budget, excluded, resolve


def reach(contract: frozenset[str], strata: Iterable[str], budget: Budget) -> dict[str, str]:
    """All strata, family:name, each with the reason why it is never drawn; empty where there is none.

    `strata` are names as `resolve` takes them: of each family that they name, only those are drawn.
    """
    reasons, wanted = excluded(contract, budget), resolve(strata)
    narrowed = {name.partition(":")[0] for name in wanted}
    for name in all_strata():
        if name.partition(":")[0] in narrowed and name not in wanted:
            reasons.setdefault(name, "not among --strata")
    return {name: reasons.get(name, "") for name in all_strata()}


def all_strata() -> list[str]:
    """All strata, family:name, in the order of the registries."""
    return [f"{family}:{name}" for family, registry in FAMILIES.items() for name in registry]
