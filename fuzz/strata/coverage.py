"""What a number of cases has hit: strata, and where lengths lie within a tile of keys."""

from collections import Counter
from collections.abc import Iterable

from fuzz.case import FAMILIES, Case, strata_of
from fuzz.strata.lengths import TILE_KEYS


def count(cases: Iterable[Case]) -> Counter[str]:
    """How many cases belong to each stratum, "family:name", and to each class of `residues_of`.

    Those that no case hit are there with 0, in the order of the registries.
    """
    counter = Counter(dict.fromkeys([*all_strata(), *_RESIDUES], 0))
    for case in cases:
        counter.update((*strata_of(case), *residues_of(case)))
    return counter


def all_strata() -> list[str]:
    return [f"{family}:{name}" for family, registry in FAMILIES.items() for name in registry]


def residues_of(case: Case) -> tuple[str, ...]:
    """Classes "kv_len mod 64 = r" and "prefix mod 64 = r", r of 0, 1, 63 or "other", that a request falls in.

    Requests without queries, and with fewer keys than queries, do not count.
    """
    hit = set()
    for _, q_len, kv_len in case.lengths:
        if q_len and kv_len >= q_len:
            hit |= {_residue("kv_len", kv_len), _residue("prefix", kv_len - q_len)}
    return tuple(name for name in _RESIDUES if name in hit)


_EDGES = (0, 1, TILE_KEYS - 1)
_RESIDUES = [f"{what} mod {TILE_KEYS} = {r}" for what in ("kv_len", "prefix") for r in (*_EDGES, "other")]


def _residue(what: str, length: int) -> str:
    residue = length % TILE_KEYS
    return f"{what} mod {TILE_KEYS} = {residue if residue in _EDGES else 'other'}"
