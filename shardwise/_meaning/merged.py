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
from .finite import add, contraction, multiply
from .term import BY_ELEMENT, Scaled, Shape, Term
from .value import Value

DEEP = 100
"""The number of operations to follow a division down."""

MANY = 20_000
"""Terms with more subterms than this are left unchanged."""


def equal_merged(a: Value, b: Value, merge: Merger | None = None) -> bool:
    """Return whether two results are the same except for how dimensions were divided for a sum."""
    if not (a.plain and b.plain) or a.term.shape != b.term.shape:
        return False
    merge = merge or Merger()
    merged = merge(a.scaled)
    return merged is not None and merged == merge(b.scaled)


class Merger:
    """Terms with sums over as few dimensions as possible, computed once for each."""

    def __init__(self) -> None:
        self.made: dict[Term, Scaled] = {}
        self.joined: dict[tuple[Term, int], Scaled | None] = {}

    def __call__(self, x: Scaled) -> Scaled | None:
        """Return a term with its sums merged, or None if it is too large.

        An explicit stack stands in for recursion, since terms may be deep.
        """
        stack = [x[1]]
        while stack:
            t = stack[-1]
            pending = [kid for coef, kid in t.kids if coef and kid not in self.made]
            if t in self.made or not pending:
                if t not in self.made:
                    self.made[t] = self._own(t)
                stack.pop()
            else:
                stack += pending
            if len(self.made) > MANY:
                return None
        return self._of(x)

    def _of(self, x: Scaled) -> Scaled:
        return T.times(x[0], self.made[x[1]]) if x[0] else x

    def _own(self, t: Term) -> Scaled:
        kids = [self._of(kid) for kid in t.kids]
        match t.op:
            case "reduce_sum":
                return self.total(kids[0], t.params)
            case "dot":
                return self.contracted(t.params, kids[0], kids[1], t.shape)
        return rebuilt(t, kids, t.shape, t.params)

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
            both = self.join(inner, d) if d + 1 in axes else None
            if both is not None:
                rest = [e - (e > d) for e in axes if e != d + 1]
                return T.times(coef, self.total(both, rest))
        return coef, t

    def contracted(self, params, x: Scaled, y: Scaled, shape: Shape) -> Scaled:
        """Return a contraction over as few dimensions as possible."""
        (cx, cy), (bx, by) = params
        x, cx, bx = unturned(x, cx, bx)
        y, cy, by = unturned(y, cy, by)
        pairs = sorted(zip(cx, cy, strict=True))
        for (i, j), after in itertools.pairwise(pairs):
            if after != (i + 1, j + 1) or not x[0] or not y[0]:
                continue
            merged_x, merged_y = self.join(x[1], i), self.join(y[1], j)
            if merged_x is None or merged_y is None:
                continue
            pairs.remove(after)
            summed = ([p - (p > i) for p, _ in pairs], [p - (p > j) for _, p in pairs])
            batch = ([b - (b > i) for b in bx], [b - (b > j) for b in by])
            fewer = (tuple(map(tuple, summed)), tuple(map(tuple, batch)))
            return self.contracted(fewer, T.times(x[0], merged_x), T.times(y[0], merged_y), shape)
        ordered = (tuple(i for i, _ in pairs), tuple(j for _, j in pairs))
        return contraction((ordered, (tuple(bx), tuple(by))), x, y, shape)

    # --- two adjacent dimensions as one

    def join(self, t: Term, d: int, depth: int = 0) -> Scaled | None:
        """Return a term with dimensions `d` and `d + 1` merged, if they were divided from one."""
        key = (t, d)
        if key not in self.joined:
            self.joined[key] = self._join(t, d, depth + 1) if depth < DEEP else None
        return self.joined[key]

    def _join(self, t: Term, d: int, depth: int) -> Scaled | None:
        shape = (*t.shape[:d], t.shape[d] * t.shape[d + 1], *t.shape[d + 2 :])
        if t.op == "reshape":
            groups = T.matched(t.kids[0][1].shape, t.shape) or ()
            together = any(d in new and d + 1 in new for _, new in groups)
            return T.reshape(t.kids[0], shape) if together else None
        if t.op == "bcast":
            return self._spread(t, d, shape, depth)
        if t.op == "dot":
            return self._product(t, d, shape, depth)
        if t.op == "transpose":
            order = t.params
            if order[d] + 1 != order[d + 1]:
                return None
            inner = self.join(t.kids[0][1], order[d], depth)
            rest = [e - (e > order[d]) for i, e in enumerate(order) if i != d + 1]
            return None if inner is None else T.transpose(inner, rest)
        if t.op in T.REDUCED:
            kept = [e for e in range(len(t.kids[0][1].shape)) if e not in t.params]
            inner = self._kid(t.kids[0], kept[d], depth) if kept[d] + 1 == kept[d + 1] else None
            if inner is None:
                return None
            return T.reduce(t.op[7:], inner, [e - (e > kept[d]) for e in t.params])
        if t.op in BY_ELEMENT or t.op in ("sum", "product"):
            if any(kid.shape != t.shape for _, kid in t.kids):
                return None
            kids = [self._kid(kid, d, depth) for kid in t.kids]
            merged = [kid for kid in kids if kid is not None]
            return rebuilt(t, merged, shape, t.params) if len(merged) == len(kids) else None
        return None

    def _kid(self, x: Scaled, d: int, depth: int) -> Scaled | None:
        coef, t = x
        if not coef:
            return T.zero((*t.shape[:d], t.shape[d] * t.shape[d + 1], *t.shape[d + 2 :]))
        merged = self.join(t, d, depth)
        return None if merged is None else T.times(coef, merged)

    def _spread(self, t: Term, d: int, shape: Shape, depth: int) -> Scaled | None:
        places = [e - (e > d) for e in t.params if e != d + 1]
        if d not in t.params and d + 1 not in t.params:
            return T.bcast(t.kids[0], shape, places)
        if d not in t.params or d + 1 not in t.params:
            return None
        dim = t.params.index(d)
        if t.params.index(d + 1) != dim + 1:
            return None
        inner = self._kid(t.kids[0], dim, depth)
        return None if inner is None else T.bcast(inner, shape, places)

    def _product(self, t: Term, d: int, shape: Shape, depth: int) -> Scaled | None:
        """Merge two dimensions of a contraction: both of a batch, or both of one operand."""
        (cx, cy), (bx, by) = t.params
        x, y = t.kids
        fx = [e for e in range(len(x[1].shape)) if e not in cx and e not in bx]
        fy = [e for e in range(len(y[1].shape)) if e not in cy and e not in by]
        rows = [
            *zip(bx, by, strict=True),
            *((e, None) for e in fx),
            *((None, e) for e in fy),
        ]
        (i, j), after = rows[d], rows[d + 1]
        if after != (None if i is None else i + 1, None if j is None else j + 1):
            return None
        merged_x = x if i is None else self._kid(x, i, depth)
        merged_y = y if j is None else self._kid(y, j, depth)
        if merged_x is None or merged_y is None:
            return None
        params = (
            (_fewer(cx, i, False), _fewer(cy, j, False)),
            (_fewer(bx, i, d < len(bx)), _fewer(by, j, d < len(bx))),
        )
        return contraction(params, merged_x, merged_y, shape)


Dimensions = Sequence[int]


def unturned(
    x: Scaled, summed: Dimensions, batch: Dimensions
) -> tuple[Scaled, Dimensions, Dimensions]:
    """Undo the transpose of an operand if its free dimensions keep their order."""
    coef, t = x
    if t.op != "transpose" or not coef:
        return x, summed, batch
    order = t.params
    loose = [order[d] for d in range(len(order)) if d not in summed and d not in batch]
    if loose != sorted(loose):
        return x, summed, batch
    inner = T.times(coef, t.kids[0])
    return inner, [order[d] for d in summed], [order[d] for d in batch]


def _fewer(dims: Sequence[int], gone: int | None, within: bool) -> tuple[int, ...]:
    """Renumber dimensions when `gone` and the next are merged."""
    if gone is None:
        return tuple(dims)
    return tuple(e - (e > gone) for e in dims if not (within and e == gone + 1))


def rebuilt(t: Term, kids: Sequence[Scaled], shape: Shape, params: object) -> Scaled:
    """Return the same operation applied to other operands."""
    if tuple(kids) == t.kids and shape == t.shape:
        return 1, t
    match t.op:
        case "sum":
            return add(kids, shape)
        case "product":
            rows = zip(kids, t.params, strict=True)
            return multiply([kid for kid, n in rows for _ in range(n)], shape)
        case "reciprocal":
            return T.reciprocal(kids[0])
        case "transpose":
            return T.transpose(kids[0], t.params)
        case "reshape":
            return T.reshape(kids[0], shape)
        case "bcast":
            return T.bcast(kids[0], shape, t.params)
        case "reduce_max" | "reduce_min":
            return T.reduce(t.op[7:], kids[0], t.params)
    if t.op in BY_ELEMENT:
        return T.elementwise(t.op, t.params, kids, shape)
    return 1, T.make(t.op, params, tuple(kids), shape)
