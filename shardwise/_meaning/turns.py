"""Loops that are the same because one turn of them is, however many there are.

What a loop carries stands for itself, whole. Each device is given its part of that, and what the
devices have after one turn, put together, is held against what one device has then. Where both are
the same for anything that may be carried, and both begin with the same, they are the same after any
number of turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from .compare import below, equal
from .pieces import equal_in_pieces
from .term import Left, Scaled, Term
from .value import Value, whole
from .ways import WAYS, Way, same

LOOPS = ("loop", "while")

FINITE = (equal, equal_in_pieces)
"""The ways that do not ask whether what is carried is finite: with masks it may not be."""


def same_in_turns(want: Value, got: Value, left: Left) -> bool:
    """Whether two results are the same where one turn of their loops is."""
    if not (want.plain and got.plain):
        return False
    masks = any(one.op == "literal" for v in (want, got) for one in below(v.term))
    try:
        return Turns(FINITE if masks else WAYS, left).alike(want.scaled, got.scaled)
    except RecursionError:
        return False


class Turns:
    """Pairs of terms that were held against each other, each once."""

    def __init__(self, ways: Sequence[Way], left: Left) -> None:
        self.ways, self.left = ways, left
        self.known: dict[tuple[Scaled, Scaled], bool] = {}

    def alike(self, a: Scaled, b: Scaled) -> bool:
        """Whether two terms are the same, loops by their turns."""
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
    """The loops that a term is made of."""
    return {one for one in below(t) if one.op in LOOPS}
