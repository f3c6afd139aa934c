"""What holds for all of our own tests."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def environment_before() -> dict[str, str]:
    """The variables as they were before the first test, and before what its module's fixtures did."""
    return _variables()


@pytest.fixture(autouse=True)
def environment_is_put_back(environment_before: dict[str, str]) -> Iterator[None]:
    """A command that a test calls in this process sets variables for its workers: no later test inherits them, nor what
    a fixture of its whole module set.
    """
    _put_back(environment_before)
    yield
    _put_back(environment_before)


def _put_back(before: dict[str, str]) -> None:
    for name in _variables().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}  # that one is pytest's
