"""Loops that are equal because one iteration of them is, whatever the number of iterations.

A symbol stands for each whole carried value, and each device gets its part of it. The devices'
results of one iteration, joined, are compared with those of one device. If both are equal for any
carried values, and the initial values are equal, then so are the results after any number of
iterations.
"""

from __future__ import annotations

from collections.abc import Sequence

from .compare import equal
from .pieces import equal_in_pieces
from .term import Left, Scaled, Term, below
from .value import Value, whole
from .ways import WAYS, Way, same

LOOPS = ("loop", "while")

FINITE = (equal, equal_in_pieces)
"""The comparisons that do not assume finite carried values: with masks they may be infinite."""


def same_in_turns(want: Value, got: Value, left: Left) -> bool:
    """Return whether two results are equal, given that one iteration of their loops is."""
    if not (want.plain and got.plain):
        return False
    masks = any(term.op == "literal" for v in (want, got) for term in below(v.term))
    try:
        return Turns(FINITE if masks else WAYS, left).alike(want.scaled, got.scaled)
    except RecursionError:
        return False


class Turns:
    """Results of comparing pairs of terms, cached."""

    def __init__(self, ways: Sequence[Way], left: Left) -> None:
        self.ways, self.left = ways, left
        self.known: dict[tuple[Scaled, Scaled], bool] = {}

    def alike(self, a: Scaled, b: Scaled) -> bool:
        """Return whether two terms are equal, comparing loops by one iteration."""
        if a == b:
            return True
        if (a, b) not in self.known:
            self.known[a, b] = self._alike(a, b)
        return self.known[a, b]

    def _alike(self, a: Scaled, b: Scaled) -> bool:
        (c, s), (d, t) = a, b
        if s.shape != t.shape:
            return False
        if _loops(s) == _loops(t):
            return bool(same(whole(a), whole(b), self.left, self.ways))
        if c != d or (s.op, s.params, len(s.kids)) != (t.op, t.params, len(t.kids)):
            return False
        return all(self.alike(x, y) for x, y in zip(s.kids, t.kids, strict=True))


def _loops(t: Term) -> set[Term]:
    """Return the loops in a term."""
    return {term for term in below(t) if term.op in LOOPS}
