"""Loads the fuzz plugin: its options, Hypothesis' profiles, and the environment of each worker.

Where there is no GPU that includes TRITON_INTERPRET=1, which has to be set before anything imports Triton.
"""

import sys

import pytest

# The session of another project that has loaded the plugin may come here on its way to the suite, where it is too late
# to name plugins.
if "fuzz.plugin" not in sys.modules:
    pytest_plugins = ["fuzz.plugin"]

# What takes half a minute or more: begun last, it would leave all other cores without work.
LONG = ("fuzz/suite/test_kernel.py", "tests/test_mutants_subset.py", "tests/test_tutorial.py", "tests/test_cluster.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONG))
