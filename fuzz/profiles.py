"""Hypothesis' settings profiles: dev, ci and nightly.

Every field is written out in each of them. A field left out would be inherited from whatever profile is loaded when
this module is imported, and under CI=true that is Hypothesis' own `ci` profile: derandomized and without a database.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.database import DirectoryBasedExampleDatabase

NAMES = ("dev", "ci", "nightly")
DATABASE = Path(".hypothesis/examples")


def register() -> None:
    """Make the profiles known to Hypothesis, and so to pytest's --hypothesis-profile."""
    settings.register_profile(
        "dev",
        settings(
            max_examples=50,
            derandomize=False,
            database=DirectoryBasedExampleDatabase(DATABASE),
            verbosity=Verbosity.normal,
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
            stateful_step_count=50,
            report_multiple_bugs=True,
            suppress_health_check=(HealthCheck.too_slow,),
            deadline=None,
            print_blob=False,
            backend="hypothesis",
        ),
    )
    settings.register_profile(
        "ci",
        settings(
            max_examples=50,
            derandomize=True,
            database=None,
            verbosity=Verbosity.normal,
            phases=(Phase.explicit, Phase.generate, Phase.target, Phase.shrink),
            stateful_step_count=50,
            report_multiple_bugs=True,
            suppress_health_check=(HealthCheck.too_slow,),
            deadline=None,
            print_blob=True,
            backend="hypothesis",
        ),
    )
    settings.register_profile(
        "nightly",
        settings(
            max_examples=1000,
            derandomize=False,
            database=DirectoryBasedExampleDatabase(DATABASE),
            verbosity=Verbosity.normal,
            phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
            stateful_step_count=50,
            report_multiple_bugs=True,
            suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
            deadline=None,
            print_blob=True,
            backend="hypothesis",
        ),
    )
