"""The choices that make up one case."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
_FAR = 1 << 40


class Choices:
    """Draws numbers and members of sequences; the first and smallest are the simplest.

    Hypothesis follows a case with five more that copy one choice over another drawn from the same strategy. That suits
    trees; here it would leave one new case in six. So no two choices of a case come from the same strategy.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._count = 0

    def integer(self, low: int, high: int) -> int:
        """An integer low .. high, and low where high is below it; fewer than 2^40 of them."""
        if high <= low:
            return low
        self._count += 1
        base = _FAR * self._count
        return self._draw(st.sampled_from(range(base + low, base + high + 1))) - base

    def one_of(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options) - 1)]

    def lengthen(self, count: int) -> None:
        """Draw until there have been `count` choices: Hypothesis takes the case of fewer for the simpler one."""
        while self._count < count:
            self.integer(0, 1)

    def seed(self) -> int:
        return self._draw(st.integers(0, (1 << 64) - 1))
