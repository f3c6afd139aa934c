"""What holds for all of our own tests."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def environment_is_put_back() -> Iterator[None]:
    """A command that a test calls in this process sets variables for its workers: no later test inherits them."""
    before = _variables()
    yield
    for name in _variables().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}  # that one is pytest's
