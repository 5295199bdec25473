"""Whether two results are the same, in one of several ways, each with an end to its work."""

from __future__ import annotations

from . import term as T
from .compare import equal
from .merged import equal_merged
from .pieces import equal_in_pieces
from .softmax import equal_in_blocks
from .value import Value

WAYS = (equal, equal_merged, equal_in_pieces, equal_in_blocks)
"""The ways in which two results are seen to be the same, the quickest first."""

WORK = 1 << 18
"""So many operands are handled in one of the ways before two results are too long to take apart."""


def same(want: Value, got: Value) -> bool | None:
    """Whether two results are the same; None where they are too long to take apart."""
    found: bool | None = False
    for way in WAYS:
        try:
            with T.at_most(WORK):
                if way(want, got):
                    return True
        except (T.TooMuch, RecursionError):
            found = None
    return found
