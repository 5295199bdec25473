"""Whether two results are the same, in one of several ways, each with an end to its work."""

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
"""The ways in which two results are seen to be the same, the quickest first."""

WORK = 1 << 18
"""So many operands are handled in one of the ways before two results are too long to take apart."""


ALL = 1 << 19
"""And so many for all results on one mesh together."""


def same(want: Value, got: Value, left: T.Left, ways: Sequence[Way] = WAYS) -> bool | None:
    """Whether two results are the same; None where they are too long for what is `left`."""
    found: bool | None = False
    for way in ways:
        try:
            with T.at_most(WORK, left):
                if way(want, got):
                    return True
        except (T.TooMuch, RecursionError):
            found = None
    return found
