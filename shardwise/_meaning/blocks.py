"""Blocks of a term: divided where its arguments are sliced.

Where devices are kept apart, each has slices of the arguments; one device has them whole. Divided
into blocks that end where a slice ends, both consist of the same slices: a sum along a dimension is
the sum of the sums of its blocks, and elementwise functions act on each block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from . import term as T
from .compare import below
from .finite import add, contraction, multiply
from .term import BY_ELEMENT, Scaled, Term

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
            self.known[key] = self._found(t, d)
        return self.known[key]

    def _found(self, t: Term, d: int) -> Cuts:
        kids = [kid for coef, kid in t.kids if coef]
        match t.op:
            case "symbol":
                return frozenset(self.cut.get((t, d), ()))
            case "bcast":
                return self(kids[0], t.params.index(d)) if d in t.params else NONE
            case "transpose":
                return self(kids[0], t.params[d])
            case "slice":
                along, start, stride = t.params
                cuts = self(kids[0], d)
                # The first element at or after a position where the operand is divided.
                inside = {-((start - cut) // stride) for cut in cuts if start < cut}
                return frozenset(cut for cut in inside if cut < t.shape[d]) if along == d else cuts
            case "reduce_sum" | "reduce_max" | "reduce_min":
                kept = [e for e in range(len(kids[0].shape)) if e not in t.params]
                return self(kids[0], kept[d])
            case "dot":
                return frozenset().union(*(self(t.kids[i][1], e) for i, e in sources(t, d)))
            case "concatenate":
                return self._joined(t, d)
            case "reshape":
                e = kept_by_reshape(t, d)
                return self(kids[0], e) if e is not None else NONE
        if t.op in BY_ELEMENT | {"sum", "product"}:
            return frozenset().union(*(self(kid, d) for kid in kids if kid.shape == t.shape))
        return NONE

    def _joined(self, t: Term, d: int) -> Cuts:
        if t.params != d:
            return frozenset().union(*(self(kid, d) for coef, kid in t.kids if coef))
        cuts, offset = set(), 0
        for coef, kid in t.kids:
            cuts |= {offset} | {offset + cut for cut in (self(kid, d) if coef else ())}
            offset += kid.shape[d]
        return frozenset(cuts - {0})

    def pieces(self, terms: Iterable[tuple[Term, int]], size: int) -> list[tuple[int, int]]:
        """Return start and size of the blocks along a dimension that several terms share."""
        cuts = frozenset().union(*(self(t, d) for t, d in terms))
        return blocks_at(cuts, size)


def blocks_at(cuts: Iterable[int], size: int) -> list[tuple[int, int]]:
    """Return start and size of the blocks between cuts."""
    edges = [0, *sorted(cuts), size]
    return [(a, b - a) for a, b in itertools.pairwise(edges)]


def kept_by_reshape(t: Term, d: int) -> int | None:
    """Return the dimension before a reshape that is dimension `d` after it."""
    inner = t.kids[0][1]
    for old, new in T.matched(inner.shape, t.shape) or ():
        real = [e for e in old if inner.shape[e] != 1]
        if [e for e in new if t.shape[e] != 1] == [d] and len(real) == 1:
            return real[0]
    return None


def sources(t: Term, d: int) -> list[tuple[int, int]]:
    """Return the operands of a contraction, with their dimensions, that dimension `d` is from."""
    (cx, cy), (bx, by) = t.params
    if d < len(bx):
        return [(0, bx[d]), (1, by[d])]
    fx = [e for e in range(len(t.kids[0][1].shape)) if e not in cx and e not in bx]
    fy = [e for e in range(len(t.kids[1][1].shape)) if e not in cy and e not in by]
    i = d - len(bx)
    return [(0, fx[i])] if i < len(fx) else [(1, fy[i - len(fx)])]


def padded(t: Term, d: int) -> bool:
    """Return whether a term is padded along a dimension, or elementwise in one that is."""
    stack, seen = [t], {t}
    while stack and len(seen) < NEAR:
        top = stack.pop()
        if top.op == "pad" and any(entry[0] == d for entry in top.params):
            return True
        if top.op in BY_ELEMENT or top.op in ("sum", "product"):
            new = {kid for _, kid in top.kids if kid.shape == t.shape} - seen
            seen |= new
            stack += new
    return False


class Cutter:
    """Blocks of terms, computed once for each."""

    def __init__(self) -> None:
        self.made: dict[tuple[Term, int, int, int], Scaled] = {}

    def __call__(self, x: Scaled, d: int, start: int, size: int) -> Scaled:
        """Return the block of `size` from `start` along dimension `d`."""
        coef, t = x
        if (start, size) == (0, t.shape[d]):
            return x
        if not coef:
            return T.zero((*t.shape[:d], size, *t.shape[d + 1 :]))
        key = (t, d, start, size)
        if key not in self.made:
            self.made[key] = self._block(t, d, start, size)
        c, out = self.made[key]
        return T.tidy(coef * c), out

    def _block(self, t: Term, d: int, start: int, size: int) -> Scaled:
        shape = (*t.shape[:d], size, *t.shape[d + 1 :])
        match t.op:
            case "bcast" if d in t.params:
                return T.bcast(self(t.kids[0], t.params.index(d), start, size), shape, t.params)
            case "bcast":
                return T.bcast(t.kids[0], shape, t.params)
            case "sum":
                return add([self(kid, d, start, size) for kid in t.kids], shape)
            case "product":
                rows = zip(t.kids, t.params, strict=True)
                factors = [self(kid, d, start, size) for kid, n in rows for _ in range(n)]
                return multiply(factors, shape)
            case "reciprocal":
                return T.reciprocal(self(t.kids[0], d, start, size))
            case "transpose":
                return T.transpose(self(t.kids[0], t.params[d], start, size), t.params)
            case "slice" if t.params[0] != d:
                inner = self(t.kids[0], d, start, size)
                along, first, stride = t.params
                return T.cut(inner, along, first, t.shape[along], stride)
            case "slice":
                first, stride = t.params[1:]
                if stride == 1:
                    return self(t.kids[0], d, first + start, size)
                return T.cut(t.kids[0], d, first + start * stride, size, stride)
            case "reduce_sum" | "reduce_max" | "reduce_min":
                kept = [e for e in range(len(t.kids[0][1].shape)) if e not in t.params]
                return T.reduce(t.op[7:], self(t.kids[0], kept[d], start, size), t.params)
            case "dot":
                kids = [*t.kids]
                for i, e in sources(t, d):
                    kids[i] = self(kids[i], e, start, size)
                return contraction(t.params, kids[0], kids[1], shape)
            case "concatenate" if t.params != d:
                return T.concatenate([self(kid, d, start, size) for kid in t.kids], t.params, shape)
            case "concatenate":
                return self._of_pieces(t, d, start, size, shape)
            case "reshape":
                e = kept_by_reshape(t, d)
                if e is not None:
                    return T.reshape(self(t.kids[0], e, start, size), shape)
        if t.op in BY_ELEMENT and all(kid.shape == t.shape for _, kid in t.kids):
            kids = [self(kid, d, start, size) for kid in t.kids]
            return T.elementwise(t.op, t.params, kids, shape)
        return T.cut((1, t), d, start, size)

    def _of_pieces(self, t: Term, d: int, start: int, size: int, shape: T.Shape) -> Scaled:
        pieces, offset = [], 0
        for kid in t.kids:
            length = kid[1].shape[d]
            low, high = max(start, offset), min(start + size, offset + length)
            if low < high:
                pieces.append(self(kid, d, low - offset, high - low))
            offset += length
        return T.concatenate(pieces, d, shape)
