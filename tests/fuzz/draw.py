"""Random choices that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Choices that a seed decides. The first of the possibilities is the simplest."""

    def __init__(self, seed: str):
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return self._random.randint(low, high)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.integer(0, len(items) - 1)]

    def chance(self, percent: int) -> bool:
        return self.integer(0, 99) >= 100 - percent

    def subset(self, items: Sequence[T], least: int = 0) -> tuple[T, ...]:
        """Some of the items, at least `least` of them, in a random order."""
        count = self.integer(least, len(items))
        return tuple(self.shuffled(items)[:count])

    def shuffled(self, items: Sequence[T]) -> list[T]:
        left = list(items)
        return [left.pop(self.integer(0, len(left) - 1)) for _ in range(len(left))]

    def weighted(self, options: Sequence[tuple[int, T]]) -> T:
        number = self.integer(0, sum(weight for weight, _ in options) - 1)
        for weight, option in options:
            if number < weight:
                return option
            number -= weight
        raise AssertionError("unreachable")
