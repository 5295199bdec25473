"""Merge dimensions that are summed over together, however a batch was divided.

After `x.reshape(k, b, d)`, the mean of the k microbatches' gradients, taken by `vmap`, is a sum
over k and b. On more devices k and b are other numbers; over the one dimension that was divided
both are the same sum. So adjacent dimensions that are summed over together are merged, with the
merge moved down to the reshape that divided them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from . import term as T
from .factors import upright
from .finite import contraction
from .indexing import Merge, Push, rebuilt
from .term import Scaled, Shape, Term
from .value import Value

DEEP = 100
"""The number of operations to follow a division down."""

MANY = 20_000
"""No more terms than this are merged."""


def equal_merged(a: Value, b: Value, merge: Merger | None = None) -> bool:
    """Return whether two results are the same except for how dimensions were divided for a sum."""
    if not (a.plain and b.plain) or a.term.shape != b.term.shape:
        return False
    merge = merge or Merger()
    return merge(a.scaled) == merge(b.scaled)


class Merger:
    """Terms with sums over as few dimensions as possible, computed once for each."""

    def __init__(self) -> None:
        self.made: dict[Term, Scaled] = {}
        self.push = Push(DEEP)

    def __call__(self, x: Scaled) -> Scaled:
        """Return a term with its sums merged."""
        T.bottom_up(x[1], self.made, self._own, lambda t: [kid for coef, kid in t.kids if coef])
        return self._of(x)

    def _of(self, x: Scaled) -> Scaled:
        return T.times(x[0], self.made[x[1]]) if x[0] else x

    def _own(self, t: Term) -> Scaled:
        if len(self.made) > MANY:
            raise T.TooMuch
        kids = [self._of(kid) for kid in t.kids]
        match t.op:
            case "reduce_sum":
                return self.total(kids[0], t.params)
            case "dot":
                return self.contracted(t.params, kids[0], kids[1], t.shape)
        return rebuilt(t, kids)

    def total(self, x: Scaled, along: Sequence[int]) -> Scaled:
        """Return a sum; that over batch dimensions of contractions is one contraction."""
        coef, t = T.reduce("sum", x, along)
        if t.op != "reduce_sum" or not coef:
            return coef, t
        inner, axes = t.kids[0][1], t.params
        if inner.op == "dot":
            (cx, cy), (bx, by) = inner.params
            batch = [d for d in axes if d < len(bx)]
            if batch:
                kept = [d for d in range(len(bx)) if d not in batch]
                params = (
                    ((*cx, *(bx[d] for d in batch)), (*cy, *(by[d] for d in batch))),
                    (tuple(bx[d] for d in kept), tuple(by[d] for d in kept)),
                )
                shape = tuple(s for d, s in enumerate(inner.shape) if d not in batch)
                x, y = inner.kids
                contracted = self.contracted(params, x, y, shape)
                rest = [d - sum(b < d for b in batch) for d in axes if d not in batch]
                return T.times(coef, self.total(contracted, rest))
        for d in axes:
            both = self.push((1, inner), d, Merge()) if d + 1 in axes else None
            if both is not None:
                rest = Merge().renumbered(axes, d)
                return T.times(coef, self.total(both, rest))
        return coef, t

    def contracted(self, params, x: Scaled, y: Scaled, shape: Shape) -> Scaled:
        """Return a contraction over as few dimensions as possible."""
        (cx, cy), (bx, by) = params
        x, cx, bx = _unturned(x, cx, bx)
        y, cy, by = _unturned(y, cy, by)
        pairs = sorted(zip(cx, cy, strict=True))
        for (i, j), after in itertools.pairwise(pairs):
            if after != (i + 1, j + 1) or not x[0] or not y[0]:
                continue
            merged_x, merged_y = self.push(x, i, Merge()), self.push(y, j, Merge())
            if merged_x is None or merged_y is None:
                continue
            fewer = tuple(
                (Merge().renumbered(dims_x, i), Merge().renumbered(dims_y, j))
                for dims_x, dims_y in (zip(*pairs, strict=True), (bx, by))
            )
            return self.contracted(fewer, merged_x, merged_y, shape)
        ordered = (tuple(i for i, _ in pairs), tuple(j for _, j in pairs))
        return contraction((ordered, (tuple(bx), tuple(by))), x, y, shape)


def _unturned(x: Scaled, summed: Sequence[int], batch: Sequence[int]):
    """Undo the transpose of an operand if its free dimensions keep their order."""
    inner, inner_summed, inner_batch, free = upright(x, summed, batch)
    return (inner, inner_summed, inner_batch) if free == sorted(free) else (x, summed, batch)
