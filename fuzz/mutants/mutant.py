"""A mutant: a fault, planted by edits of the source, and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz.mutants.edit import Edit, Sources

ANYWHERE, GPU, GPUS = "anywhere", "gpu", "gpus"
# The lists that mutants come from. The fuzzer finds them, and our own tests those of the last.
NAMED, HOPPER, GENERATED, HOPPER_GENERATED, JUDGE = "named", "hopper", "generated", "hopper-generated", "judge"
GROUPS = (NAMED, HOPPER, GENERATED, HOPPER_GENERATED, JUDGE)
EMULATED = (HOPPER, HOPPER_GENERATED)  # on the emulated kernel for Hopper
FROM_SYNTAX = (GENERATED, HOPPER_GENERATED)
# What is not mutated and so must survive, else what is killed says nothing.
CONTROL = "control"
# Events in the journal of a mutant's process: a case before it and after it; how it ends; a smaller case.
CASE, PASSED = "case", "passed"
KILLED, SURVIVED, BROKEN, SHRUNK = "killed", "survived", "broken", "shrunk"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A named fault.

    name         unique
    edits        of the kernel's source, or of the reference's and the judge's
    fault        classes of fuzz.strata.faults.FAULTS
    bug          the public report that shows it, or what it is otherwise
    where        ANYWHERE, or GPU for what Triton's interpreter cannot show, or GPUS for what takes two of them
    shown_by     if not ANYWHERE: the strata or the check that show it there
    equivalent   why nothing can tell it from the original, or ""
    tests        of a fault in the reference or the judge: the test files that must fail
    """

    name: str
    edits: tuple[Edit, ...]
    fault: str = ""
    bug: str = ""
    where: str = ANYWHERE
    shown_by: str = ""
    equivalent: str = ""
    tests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Planted:
    """A mutant of any group, ready to run: `changed` holds the modules that differ from the original."""

    name: str
    group: str
    changed: Sources
    fault: str = ""
    bug: str = ""
    where: str = ANYWHERE
    shown_by: str = ""
    equivalent: str = ""
    tests: tuple[str, ...] = ()
