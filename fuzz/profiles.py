"""Hypothesis' settings profiles: dev, ci and nightly.

Every field is written out. A field left out would be inherited from whatever profile is loaded when this module is
imported, and under CI=true that is Hypothesis' own `ci` profile: derandomized and without a database.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from fuzz.options import UsageError

NAMES = ("dev", "ci", "nightly")
DATABASE = Path(".hypothesis/examples")


def register() -> None:
    """Make the profiles known to Hypothesis, and so to pytest's --hypothesis-profile."""
    slow = (HealthCheck.too_slow,)
    _register("dev", max_examples=50, random=True, suppress=slow, print_blob=False)
    _register("ci", max_examples=50, random=False, suppress=slow, print_blob=True)
    large = (HealthCheck.data_too_large, HealthCheck.filter_too_much)
    _register("nightly", max_examples=1000, random=True, suppress=(*slow, *large), print_blob=True)


def load(name: str) -> None:
    """Put a profile in force.

    Raises:
        UsageError: it is none of `NAMES`.
    """
    if name not in NAMES:
        raise UsageError(f"Hypothesis profile {name!r} is none of {', '.join(NAMES)}")
    settings.load_profile(name)


def seed_of_a_run() -> int:
    """A seed for a run that was given none: another one each time, unless the profile in force is derandomized."""
    current = settings.default
    return 0 if current is not None and current.derandomize else secrets.randbits(63)


def _register(
    name: str, *, max_examples: int, random: bool, suppress: Collection[HealthCheck], print_blob: bool
) -> None:
    """`random`: it draws other examples each time, and remembers those that failed."""
    remembered = (Phase.reuse,) if random else ()
    settings.register_profile(
        name,
        settings(
            max_examples=max_examples,
            derandomize=not random,
            database=DirectoryBasedExampleDatabase(DATABASE) if random else None,
            verbosity=Verbosity.normal,
            phases=(Phase.explicit, *remembered, Phase.generate, Phase.target, Phase.shrink),
            stateful_step_count=50,
            report_multiple_bugs=True,
            suppress_health_check=suppress,
            deadline=None,
            print_blob=print_blob,
            backend="hypothesis",
        ),
    )
