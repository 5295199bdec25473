"""Blocks of a term: divided where its arguments are sliced.

Where devices are kept apart, each has slices of the arguments; one device has them whole. Divided
into blocks that end where a slice ends, both consist of the same slices: a sum along a dimension is
the sum of the sums of its blocks, and elementwise functions act on each block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from .indexing import CHANGED, ELEMENTWISE, rows_of
from .term import Term, below

Cuts = frozenset[int]
NONE: Cuts = frozenset()

NEAR = 128
"""The number of terms among which to look for a padded one."""


class Seams:
    """The positions at which any of several terms slices an argument."""

    def __init__(self, terms: Iterable[Term]):
        self.known: dict[tuple[Term, int], Cuts] = {}
        self.cut: dict[tuple[Term, int], set[int]] = {}
        for t in itertools.chain.from_iterable(below(term) for term in terms):
            if t.op == "slice":
                along, start, stride = t.params
                self._enter(t.kids[0][1], along, start - start % stride, t.shape[along] * stride)

    def _enter(self, t: Term, d: int, start: int, size: int) -> None:
        """Record the ends of a slice of an argument, which may be transposed."""
        while t.op == "transpose" or (t.op == "slice" and t.params[0] != d):
            d = t.params[d] if t.op == "transpose" else d
            t = t.kids[0][1]
        if t.op == "symbol":
            cuts = self.cut.setdefault((t, d), set())
            cuts |= {end for end in (start, start + size) if 0 < end < t.shape[d]}

    def __call__(self, t: Term, d: int) -> Cuts:
        """Return the positions along a dimension at which a term is divided into blocks."""
        key = (t, d)
        if key not in self.known:
            self.known[key] = self._positions(t, d)
        return self.known[key]

    def _positions(self, t: Term, d: int) -> Cuts:
        if t.op == "symbol":
            return frozenset(self.cut.get((t, d), ()))
        kids = [kid if coef else None for coef, kid in t.kids]
        inner = [
            NONE if kid is None or at is None or at == CHANGED else self(kid, at)
            for kid, at in zip(kids, (row[d] for row in rows_of(t)), strict=True)
        ]
        if t.op == "slice" and t.params[0] == d:
            _, start, stride = t.params
            # The first element at or after a position where the operand is divided.
            cuts = self(t.kids[0][1], d)
            inside = {-((start - cut) // stride) for cut in cuts if start < cut}
            return frozenset(cut for cut in inside if cut < t.shape[d])
        if t.op == "concatenate" and t.params == d:
            cuts, offset = set(), 0
            for coef, kid in t.kids:
                cuts |= {offset} | {offset + cut for cut in (self(kid, d) if coef else ())}
                offset += kid.shape[d]
            return frozenset(cuts - {0})
        return NONE.union(*inner)

    def pieces(self, terms: Iterable[tuple[Term, int]], size: int) -> list[tuple[int, int]]:
        """Return start and size of the blocks along a dimension that several terms share."""
        cuts = NONE.union(*(self(t, d) for t, d in terms))
        return [(a, b - a) for a, b in itertools.pairwise([0, *sorted(cuts), size])]


def padded(t: Term, d: int) -> bool:
    """Return whether a term is padded along a dimension, or elementwise in one that is."""
    stack, seen = [t], {t}
    while stack and len(seen) < NEAR:
        top = stack.pop()
        if top.op == "pad" and any(entry[0] == d for entry in top.params):
            return True
        if top.op in ELEMENTWISE:
            new = {kid for _, kid in top.kids if kid.shape == t.shape} - seen
            seen |= new
            stack += new
    return False
