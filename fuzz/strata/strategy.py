"""Hypothesis strategies over cases.

A case costs some twenty small choices. Each lists the simplest first and numbers grow with difficulty, so that a
failing case shrinks to one request of few rows with default strata. Lengths are cut to a budget of tiles while they are
drawn: nothing is drawn and thrown away.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from fuzz.build import memory_bytes
from fuzz.case import FAMILIES, NAMED, Case, promises_needed
from fuzz.strata.choices import Choices
from fuzz.strata.draw_lengths import draw_runs
from fuzz.strata.faults import FAULTS, FOUND_BY_REPETITION
from fuzz.strata.lengths import CHUNKS, CROWDS, GRID_LIMIT, INT32_ROWS, LONG, Runs, labels, server_lengths, tiles


@dataclass(frozen=True)
class Budget:
    """What one case may cost.

    device        "cpu" or "cuda"
    tiles         of 4 queries x 64 keys, in ordinary cases
    most_tiles    in the rare strata that are about size
    memory        bytes of operands and results
    heavy_one_in  one case in so many may belong to a stratum that takes gigabytes or many times the usual time
    """

    device: str
    tiles: int
    most_tiles: int
    memory: int
    heavy_one_in: int


# The interpreter takes about 5 ms for a tile and 20 ms for a program. On a GPU the verdict costs most: up to some 64
# tiles a core does it in 50 ms. What is heavy there is cheap on the CPU, where untouched memory costs nothing.
CPU = Budget("cpu", tiles=16, most_tiles=52, memory=1 << 30, heavy_one_in=1)
GPU = Budget("cuda", tiles=128, most_tiles=1 << 17, memory=48 << 30, heavy_one_in=40)


def cases(contract: frozenset[str], strata: Iterable[str] | None = None, *, budget: Budget) -> st.SearchStrategy[Case]:
    """Cases that a kernel with the promises `contract` can be judged on, within `budget`.

    `strata` are names as `resolve` gives them: of each family that they name, only those are drawn. Raises ValueError
    if one of them cannot be drawn at all, with the reason that `excluded` gives.
    """
    wanted = resolve(strata or ())
    reasons = excluded(contract, budget)
    allowed: dict[str, list[str]] = {}
    for family, registry in FAMILIES.items():
        chosen = [name for name in registry if f"{family}:{name}" in wanted]
        for name in chosen:
            if f"{family}:{name}" in reasons:
                raise ValueError(f"{family}:{name} cannot be drawn: {reasons[f'{family}:{name}']}")
        allowed[family] = chosen or [name for name in registry if f"{family}:{name}" not in reasons]
    return _cases(contract, allowed, budget)


def resolve(names: Iterable[str]) -> frozenset[str]:
    """Full names family:name of strata given by full name, by name alone, by family for all of it, or by class of
    mistakes for all that are there to reveal it.

    Raises ValueError for a name that is unknown or that several families have, and for a class that no stratum reveals.
    """
    full = [f"{family}:{name}" for family, registry in FAMILIES.items() for name in registry]
    chosen: list[str] = []
    for given in names:
        found = [name for name in full if given in (name, name.split(":")[1])]
        if given in FAMILIES:
            chosen += [name for name in full if name.startswith(f"{given}:")]
        elif given in FOUND_BY_REPETITION:
            raise ValueError(f"{given} shows in no stratum but in checks that call the kernel again")
        elif given in FAULTS:
            chosen += [name for name in full if given in _source(name)]
        elif len(found) == 1:
            chosen += found
        elif found:
            raise ValueError(f"stratum {given!r} is one of {', '.join(found)}")
        else:
            raise ValueError(f"no stratum {given!r}; there are {', '.join(full)}")
    return frozenset(chosen)


def _source(name: str) -> str:
    """What a stratum, family:name, cites."""
    family, _, stratum = name.partition(":")
    return FAMILIES[family][stratum].source


def excluded(contract: frozenset[str], budget: Budget) -> dict[str, str]:
    """Strata that are never drawn, family:name, each with the reason: what is not run is known by name."""
    reasons = {}
    for family, registry in FAMILIES.items():
        for name in registry:
            reason = exclusion(_least(family, name), contract, budget)
            if reason:
                reasons[f"{family}:{name}"] = reason
    return reasons


def _least(family: str, name: str) -> Case:
    """About the smallest case of a stratum; whatever its family, the rest asks for `base` alone."""
    plain = Case(((1, 2, 2),), poison="decoys")
    if family == "lengths":
        return replace(plain, lengths=_LEAST.get(name, plain.lengths))
    return replace(plain, **{family: name} if family in NAMED else {name: 1})


_LEAST: dict[str, Runs] = {
    "masked-rows": ((1, 2, 1),),
    "splits": ((1, 1, CHUNKS[0]),),
    "crowd": ((CROWDS[0] + 1, 0, 0),),
    "server": min(server_lengths().values(), key=tiles),
    "many-requests": ((GRID_LIMIT + 1, 0, 0), (1, 1, 1)),
    "long-context": ((1, 1, LONG),),
    "huge-q": ((1, INT32_ROWS + 1, 1),),
}


def exclusion(case: Case, contract: frozenset[str], budget: Budget) -> str | None:
    """Why a case must not be drawn, or None."""
    missing = promises_needed(case) - contract
    if missing:
        return f"needs the promise {', '.join(sorted(missing))}"
    if case.tiles > budget.most_tiles:
        return f"needs {case.tiles:,} tiles, the budget is {budget.most_tiles:,}"
    memory = memory_bytes(case, budget.device)
    if memory > budget.memory:
        return f"needs {memory / 2**30:.1f} GiB, the budget is {budget.memory / 2**30:.1f} GiB"
    return None


# share of a family's first and simplest name; of families that are not here, all are alike
_PLAIN = {"pages": 0.3, "values": 0.3, "layout": 0.4, "scale": 0.5, "dtype": 0.8, "index_dtype": 0.6, "indptr": 0.8}
# of the other names, what is drawn more often than the rest: `wide` says something of half of the operands,
# `index-packed` where keys are claimed that are not there; the others show what nothing else does
_OFTEN = {"layout:wide": 3, "layout:index-packed": 2, "pages:aliases": 2, "pages:no-pages": 2, "indptr:qo-max": 3}
# what strata have to say, they say together with these: half of the cases of all of the former have one of the latter
# in its family
_TOGETHER: dict[tuple[str, ...], tuple[str, ...]] = {
    # claims more keys than there are in the batch; and a short request has its own way to step through its pages
    ("lengths:tiny",): ("indptr:kv-past-end", "layout:index-stepped"),
    ("lengths:two-rounds",): ("pages:garbage", "indptr:kv-past-end"),  # in either round
    ("lengths:query-edge",): ("values:nonfinite-hidden",),  # no row of a tile is idle, and not all see the key
    ("lengths:no-prefix",): ("values:nonfinite-beyond",),  # rows of one tile see some of it, all of it, and none
    # where a page that is missing is among the few that one row of a tile sees, and the next one does not
    ("lengths:no-prefix", "lengths:query-edge"): ("pages:just-past",),
    # the first key past an edge is the first of all, or the page that is missing
    ("lengths:masked-rows",): ("values:nonfinite-beyond", "pages:just-past"),
    ("lengths:splits",): ("values:logits-below",),  # a chunk that holds nothing wins
    ("lengths:splits", "lengths:long-context"): ("values:rising",),  # chunks merged after others outweigh them
    ("lengths:decode", "lengths:key-edge"): ("values:nonfinite-hidden",),  # tiles of which all keys are seen
    ("layout:index-packed",): ("indptr:kv-before-start",),  # what is there could be a page
    # the last key, which not all rows see, is in the last page of the cache
    ("lengths:single", "lengths:prefix-edge"): ("pages:from-zero",),
    ("lengths:single", "lengths:prefix-edge", "pages:from-zero"): ("values:nonfinite-beyond",),
    ("pages:no-pages",): ("indptr:kv-min",),  # nothing is to be read, wherever keys are claimed
    ("pages:aliases",): ("index_dtype:int64", "index_dtype:int64-indices"),  # int32 has no id of 33 bits
    ("values:power-of-two",): ("scale:ln2",),
    ("values:correlated",): ("scale:ln2",),
}
_HEAVY_LENGTHS = frozenset({"many-requests", "long-context", "huge-q"})
_TAIL = (1, 2, 3, 7, 17, 70)


def _is_heavy(family: str, name: str) -> bool:
    """Whether a stratum is about size, so that a case of it takes gigabytes or many times the usual time."""
    registry = FAMILIES[family]
    return getattr(registry[name], "sparse", False) or (family == "lengths" and name in _HEAVY_LENGTHS)


def _pool(family: str, names: list[str]) -> list[str]:
    """The names, the first as often as its share demands."""
    others = [name for name in names[1:] for _ in range(_OFTEN.get(f"{family}:{name}", 1))]
    share = _PLAIN.get(family)
    repeats = round(len(others) * share / (1 - share)) if share is not None and others else 1
    return [names[0]] * repeats + others


def _partners(family: str, pool: list[str], so_far: list[str]) -> list[str]:
    """Names of the pool that strata chosen so far go together with, about as many as the pool has."""
    full = [name for strata, names in _TOGETHER.items() if set(strata) <= set(so_far) for name in names]
    names = [name for name in pool if f"{family}:{name}" in full]
    return names * (len(pool) // len(names)) if names else []


def _cases(contract: frozenset[str], allowed: dict[str, list[str]], budget: Budget) -> st.SearchStrategy[Case]:
    light = {family: [n for n in names if not _is_heavy(family, n)] or names for family, names in allowed.items()}
    pools = [{family: _pool(family, names[family]) for family in NAMED} for names in (light, allowed)]
    some = [*combinations(allowed["tail"], 1), tuple(allowed["tail"])]
    tails = [()] * len(some) + some

    @st.composite
    def draw_case(draw: st.DrawFn) -> Case:
        choices = Choices(draw)
        masked, on_gpu = "masked-rows" in contract, budget.device == "cuda"
        heavy = choices.integer(0, budget.heavy_one_in - 1) == budget.heavy_one_in - 1
        lengths = (allowed if heavy else light)["lengths"]
        runs = draw_runs(choices, lengths, budget.tiles, budget.most_tiles, masked=masked, on_gpu=on_gpu)
        chosen: dict[str, Any] = {"lengths": runs}
        so_far = [f"lengths:{name}" for name in labels(runs)]
        for family, pool in pools[heavy].items():
            chosen[family] = choices.one_of(pool + _partners(family, pool, so_far))
            so_far.append(f"{family}:{chosen[family]}")
        chosen |= {name: choices.one_of(_TAIL) for name in choices.one_of(tails)}
        return _compatible(Case(**chosen, seed=choices.seed()), contract, allowed, budget)

    return draw_case()


def _compatible(case: Case, contract: frozenset[str], allowed: dict[str, list[str]], budget: Budget) -> Case:
    """The case, or the nearest one that may be drawn: strata that do may still not go together."""
    simpler: dict[str, Any] = {}
    for family in ("layout", "pages", "values"):
        if exclusion(case, contract, budget) is None:
            return case
        simpler[family] = allowed[family][0]
        case = replace(case, **simpler)
    if exclusion(case, contract, budget) is not None:
        reject()
    return case
