"""Which mutants there are."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import cache
from hashlib import blake2b

from fuzz.mutants.catalogue import CATALOGUE
from fuzz.mutants.edit import Edit, Sources, StaleEdit, apply
from fuzz.mutants.equivalent import EQUIVALENT, ON_A_GPU
from fuzz.mutants.generated import generate
from fuzz.mutants.hopper import MUTANTS
from fuzz.mutants.judges import JUDGES
from fuzz.mutants.mutant import (
    ANYWHERE,
    CONTROL,
    EMULATED,
    GENERATED,
    GPU,
    HOPPER,
    HOPPER_GENERATED,
    JUDGE,
    NAMED,
    Mutant,
    Planted,
)
from fuzz.mutants.package import kernel_sources
from fuzz.mutants.selftest import repository_sources
from fuzz.options import UsageError

FOR_HOPPER = "the unchanged kernel for Hopper"


def collect(groups: Collection[str], only: Collection[str] = (), sample: int | None = None) -> list[Planted]:
    """The mutants of some groups, after what is not mutated: those named in `only`, or `sample` of each, or all.

    A sample is always the same.

    Raises StaleEdit if one does not fit its source any more, UsageError for a name that there is not.
    """
    found: list[Planted] = []
    for group in groups:
        if only and {planted.name for planted in found}.issuperset(only):
            break  # generated ones take seconds
        mutants = list(_PLANT[group]())
        found += mutants if sample is None else sorted(mutants, key=_rank)[:sample]
    if only:
        names = {planted.name for planted in found}
        for name in only:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                raise UsageError(f"--only: no mutant {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        found = [planted for planted in found if planted.name in only]
    return [*_controls(found), *found]


def _controls(mutants: Collection[Planted]) -> Iterator[Planted]:
    if any(not planted.tests and planted.group not in EMULATED for planted in mutants):
        yield Planted("the unchanged kernel", CONTROL, run_of("portable"))
    if any(planted.group in EMULATED for planted in mutants):
        yield Planted(FOR_HOPPER, CONTROL, run_of("emulated"))
    tests = dict.fromkeys(test for planted in mutants for test in planted.tests)
    if tests:
        yield Planted("the unchanged judge", CONTROL, {}, tests=tuple(tests))


@cache
def run_of(module: str) -> Sources:
    """What has to change for the package's `run` to be that of one of its modules: of `portable`, so that a GPU which
    has a kernel of its own runs what is mutated; of `emulated`, for the kernel for Hopper on a CPU."""
    return apply([Edit("__init__.py", "from .host import run", f"from .{module} import run")], kernel_sources())


def _named() -> Iterator[Planted]:
    for planted in _planted(NAMED, CATALOGUE, kernel_sources()):
        yield replace(planted, changed=planted.changed | run_of("portable"))


def _hopper() -> Iterator[Planted]:
    for planted in _planted(HOPPER, MUTANTS, kernel_sources()):
        yield replace(planted, changed=planted.changed | run_of("emulated"))


def _judges() -> Iterator[Planted]:
    return _planted(JUDGE, JUDGES, repository_sources())


def _generated() -> Iterator[Planted]:
    return _from_syntax(GENERATED, "portable")


def _hopper_generated() -> Iterator[Planted]:
    return _from_syntax(HOPPER_GENERATED, "emulated")


def _from_syntax(group: str, module: str) -> Iterator[Planted]:
    sources = kernel_sources()
    portable, hopper = ({one.name: one for one in generate(sources, for_hopper)} for for_hopper in (False, True))
    for name in (*EQUIVALENT, *ON_A_GPU):
        if name not in portable and name not in hopper:
            raise StaleEdit(f"fuzz/mutants/equivalent.py: the kernel has no mutant {name!r} any more")
    for name, mutant in (portable if group == GENERATED else hopper).items():
        yield Planted(
            name, group, mutant.apply(sources) | run_of(module), bug=mutant.kind,
            where=GPU if name in ON_A_GPU else ANYWHERE, shown_by=ON_A_GPU.get(name, ""),
            equivalent=EQUIVALENT.get(name, ""),
        )  # fmt: skip


def _planted(group: str, mutants: Iterable[Mutant], sources: Sources) -> Iterator[Planted]:
    for mutant in mutants:
        try:
            changed = apply(mutant.edits, sources)
        except StaleEdit as error:
            raise StaleEdit(f"mutant {mutant.name!r}: {error}") from None
        yield Planted(
            mutant.name, group, changed, mutant.fault, mutant.bug, mutant.where, mutant.shown_by, mutant.equivalent,
            mutant.tests,
        )  # fmt: skip


_PLANT = {
    NAMED: _named, HOPPER: _hopper, GENERATED: _generated, HOPPER_GENERATED: _hopper_generated, JUDGE: _judges,
}  # fmt: skip


def _rank(planted: Planted) -> bytes:
    return blake2b(planted.name.encode(), digest_size=8).digest()
