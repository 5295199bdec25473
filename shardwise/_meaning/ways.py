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

WORK = 1 << 19
"""So many operands are handled in one of the ways before two results are too long to take apart."""


def same(want: Value, got: Value, ways: Sequence[Way] = WAYS) -> bool | None:
    """Whether two results are the same; None where they are too long to take apart."""
    found: bool | None = False
    for way in ways:
        try:
            with T.at_most(WORK):
                if way(want, got):
                    return True
        except (T.TooMuch, RecursionError):
            found = None
    return found
