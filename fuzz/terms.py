"""What a kernel is held to and on which cases, from the names that a user gives."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis.strategies import SearchStrategy

from fuzz.case import Case
from fuzz.options import UsageError
from fuzz.strata.strategy import Budget, cases
from kernel.contract import CONTRACTS, PROMISES


def promises(contract: str, without: Sequence[str]) -> frozenset[str]:
    """The promises of a contract, less some.

    Raises:
        UsageError: there is no such contract, or one of those is no promise, or the one to be right at all.
    """
    if contract not in CONTRACTS:
        raise UsageError(f"--contract {contract}: no such contract; there are {', '.join(CONTRACTS)}")
    for name in without:
        if name not in PROMISES:
            raise UsageError(f"--without {name}: no such promise; there are {', '.join(PROMISES)}")
        if name == "base":
            raise UsageError("--without base: nothing would be left to check, all other promises rest on it")
    return CONTRACTS[contract].difference(without)


def drawn(contract: frozenset[str], strata: Sequence[str], budget: Budget) -> SearchStrategy[Case]:
    """The strategy for the cases of a run.

    Raises:
        UsageError: a stratum that does not exist or cannot be drawn.
    """
    try:
        return cases(contract, strata, budget=budget)
    except ValueError as error:
        raise UsageError(f"--strata {','.join(strata)}: {error}") from error
