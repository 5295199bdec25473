"""Comparison of two results in several ways, each with limited work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import term as T
from .compare import equal
from .merged import equal_merged
from .pieces import equal_in_pieces
from .softmax import equal_in_blocks
from .value import Value

Way = Callable[[Value, Value], bool]

WAYS: tuple[Way, ...] = (equal, equal_merged, equal_in_pieces, equal_in_blocks)
"""The comparisons, the fastest first."""

WORK = 1 << 18
"""The work allowed for one comparison of two results, in operands handled."""


ALL = 1 << 19
"""The work allowed for all results on one mesh together."""


def same(want: Value, got: Value, left: T.Left, ways: Sequence[Way] = WAYS) -> bool | None:
    """Return whether two results are equal, or None if too long for what is `left`."""
    result: bool | None = False
    for comparison in ways:
        try:
            with T.at_most(WORK, left):
                if comparison(want, got):
                    return True
        except (T.TooMuch, T.TooLate, RecursionError):
            result = None
    return result
