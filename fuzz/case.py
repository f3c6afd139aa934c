"""A case: the small value from which all operands of one call follow.

It is what Hypothesis draws and shrinks, what a failure is stored as, and what is replayed. It holds lengths, names of
strata, a seed and a few numbers, never tensors; `fuzz.build.build` turns it into operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch

from fuzz.strata import lengths as _lengths
from fuzz.strata.indptr import INDPTRS
from fuzz.strata.layouts import INDEX_DTYPES, LAYOUTS
from fuzz.strata.lengths import LENGTHS, Runs
from fuzz.strata.pages import PAGES
from fuzz.strata.poison import POISONS
from fuzz.strata.scales import SCALES
from fuzz.strata.stratum import Stratum
from fuzz.strata.tails import TAILS
from fuzz.strata.values import VALUES

DTYPES = {
    "bfloat16": Stratum(doc="bfloat16, the definition's", source="definition"),
    "float16": Stratum(doc="float16: more mantissa, less range, another weight rounding", source="F22"),
}

# family of strata -> its registry; but for lengths and tail, a family is also a field of Case
FAMILIES: dict[str, Mapping[str, Stratum]] = {
    "lengths": LENGTHS,
    "tail": TAILS,
    "pages": PAGES,
    "values": VALUES,
    "layout": LAYOUTS,
    "scale": SCALES,
    "poison": POISONS,
    "dtype": DTYPES,
    "index_dtype": INDEX_DTYPES,
    "indptr": INDPTRS,
}

NAMED = tuple(family for family in FAMILIES if family not in ("lengths", "tail"))

# What a case may ask for at most, so that a damaged file is told from a case before memory is taken.
_LIMITS = {"batch": 1 << 20, "q_len": 1 << 22, "kv_len": 1 << 20, "total_q": 1 << 22, "total_kv": 1 << 24}
_MAX_RUNS = 1 << 12
_MAX_SPARE = 1 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """Lengths, strata and numbers of one call; the defaults are the simplest.

    lengths        runs (count, q_len, kv_len) of equal requests, in the order of the batch
    pages .. indptr  names of strata, see `FAMILIES`
    padded_rows    query rows at or past qo_indptr[-1]
    spare_indices  entries of kv_indices at or past kv_indptr[-1], which name no page
    spare_pages    dead pages besides page 0
    seed           0 .. 2^64 - 1

    Raises ValueError naming the field that is wrong.
    """

    lengths: Runs
    pages: str = "identity"
    values: str = "bell"
    layout: str = "contiguous"
    scale: str = "trained"
    poison: str = "nan"
    dtype: str = "bfloat16"
    index_dtype: str = "int32"
    indptr: str = "valid"
    padded_rows: int = 0
    spare_indices: int = 0
    spare_pages: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_lengths(self.lengths)
        for family in NAMED:
            name = getattr(self, family)
            if not isinstance(name, str) or name not in FAMILIES[family]:
                raise ValueError(f"{family} is {name!r}, must be one of {', '.join(FAMILIES[family])}")
        for field in TAILS:
            _check_integer(field, getattr(self, field), 0, _MAX_SPARE)
        _check_integer("seed", self.seed, 0, (1 << 64) - 1)

    @property
    def batch(self) -> int:
        return _lengths.batch(self.lengths)

    @property
    def total_q(self) -> int:
        """Query rows that a request owns; the operands have `padded_rows` more."""
        return _lengths.total_q(self.lengths)

    @property
    def total_kv(self) -> int:
        """Key positions, kv_indptr[-1]; kv_indices has `spare_indices` entries more."""
        return _lengths.total_kv(self.lengths)

    @property
    def tiles(self) -> int:
        """About how many tiles of 4 queries x 64 keys a kernel visits: what the case costs."""
        return _lengths.tiles(self.lengths) + -(-self.padded_rows // _lengths.TILE_QUERIES)

    @property
    def size(self) -> tuple[int, ...]:
        """Sort key, smaller is simpler: rows and keys, then departures from the defaults, then the rest."""
        extra = self.padded_rows + self.spare_indices + self.spare_pages
        names = [list(FAMILIES[family]).index(getattr(self, family)) for family in NAMED]
        return (
            self.total_q + self.total_kv + self.batch + extra,
            sum(map(bool, names)),
            self.batch,
            extra,
            sum(names),
            self.seed.bit_length(),
        )

    def to_json(self) -> dict[str, object]:
        """A JSON object; `from_json` gives an equal case back."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"lengths": [list(run) for run in self.lengths]}

    @classmethod
    def from_json(cls, value: object) -> Case:
        """The case of a JSON object. Strict: every field, no other; ValueError names what is wrong."""
        if not isinstance(value, dict):
            raise ValueError(f"a case is {type(value).__name__}, must be an object")
        names = {field.name for field in fields(cls)}
        for name in sorted(value.keys() - names):
            raise ValueError(f"{name} is no field of a case")
        for name in sorted(names - value.keys()):
            raise ValueError(f"{name} is missing")
        runs = value["lengths"]
        if not isinstance(runs, list) or not all(isinstance(run, list) for run in runs):
            raise ValueError("lengths must be a list of [count, q_len, kv_len]")
        return cls(**value | {"lengths": tuple(tuple(run) for run in runs)})


def strata_of(case: Case) -> tuple[str, ...]:
    """The strata that a case belongs to, as family:name: any number of lengths and tails, one of every other family."""
    lengths = (f"lengths:{name}" for name in _lengths.labels(case.lengths))
    tails = (f"tail:{name}" for name in TAILS if getattr(case, name))
    return (*lengths, *tails, *(f"{family}:{getattr(case, family)}" for family in NAMED))


def promises_needed(case: Case) -> frozenset[str]:
    """The promises (`kernel.contract.PROMISES`) that a kernel must make for its result on this case to be judged."""
    values, layout = VALUES[case.values], LAYOUTS[case.layout]
    pages, indptr = PAGES[case.pages], INDPTRS[case.indptr]
    needed = {
        "base": True,
        "nan-contained": not POISONS[case.poison].finite,
        "masked-rows": any(0 < kv_len < q_len for _, q_len, kv_len in case.lengths),
        "padding": case.padded_rows > 0 or case.spare_indices > 0,
        "strided": layout is not LAYOUTS["contiguous"],
        "int64-indices": torch.int64 in INDEX_DTYPES[case.index_dtype].dtypes,
        "float16": case.dtype == "float16",
        # behind a shared page a key that its owner's rows all see may lie past the edge of another row
        "causal-contained": values.contained or (not values.finite and pages.shared),
        "hardened": pages.broken or not indptr.valid,
    }
    return frozenset(name for name, wanted in needed.items() if wanted)


def is_finite(case: Case) -> bool:
    """Whether no query or key that a request owns holds NaN or infinity, so that no row is contaminated."""
    return VALUES[case.values].finite


def is_sparse(case: Case) -> bool:
    """Whether an operand takes gigabytes of which next to nothing is touched; such operands are never copied."""
    return PAGES[case.pages].sparse or LAYOUTS[case.layout].sparse


def is_bell_shaped(case: Case) -> bool:
    """Whether rounding errors are as good as independent, so that the statistical form of the bound is a verdict.

    Not so where all weights are equal, or where a key counts several times.
    """
    varied = case.scale not in ("zero", "small") and not PAGES[case.pages].repeats
    return VALUES[case.values].bell and varied and INDPTRS[case.indptr].valid


def _check_lengths(runs: object) -> None:
    if not isinstance(runs, tuple) or len(runs) > _MAX_RUNS:
        raise ValueError(f"lengths must be a tuple of at most {_MAX_RUNS} runs (count, q_len, kv_len)")
    for i, run in enumerate(runs):
        if not isinstance(run, tuple) or len(run) != 3:
            raise ValueError(f"lengths[{i}] is {run!r}, must be (count, q_len, kv_len)")
        for name, number, low, high in zip(
            ("count", "q_len", "kv_len"),
            run,
            (1, 0, 0),
            (_LIMITS["batch"], _LIMITS["q_len"], _LIMITS["kv_len"]),
            strict=True,
        ):
            _check_integer(f"lengths[{i}] {name}", number, low, high)
    for name in ("batch", "total_q", "total_kv"):
        _check_integer(f"{name} of lengths", getattr(_lengths, name)(runs), 0, _LIMITS[name])


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, must be an integer")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, must be {low} .. {high}")
