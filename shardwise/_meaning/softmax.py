"""One normal form for softmax: whole, in blocks, or running.

A running softmax (ring attention, flash attention) keeps the largest score so far and rescales its
sums whenever that grows. The largest score only serves rounding: since
`exp(s - m) = exp(s) / exp(m)`, it is a factor of numerator and denominator alike, and cancels. So
here exponentials of sums become products, factors that are uniform along a sum move in front of it,
common factors of all summands move in front of them, `exp(m) / exp(m)` is 1, and sums are divided
into blocks where the arguments are (`blocks`). What remains is `sum(exp(s) v) / sum(exp(s))`.

A score of minus infinity is a masked one: its exponential is 0. Then `exp(s - m)` is only taken
apart where `m` is known to be finite, which needs a mask whose values are known: the difference of
two infinities is NaN, in a program and here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from . import finite
from . import term as T
from .blocks import Seams
from .elementwise import choose
from .evaluate import LARGE, numbers
from .factors import Factors, factors, largest, moved, ordered, positive, quotient_of, same_along
from .finite import contraction, places
from .indexing import ELEMENTWISE, FORMS, BlockMap, Push, rebuilt
from .term import Scaled, Shape, Term


def _of_exponentials(x: Scaled) -> bool:
    """Return whether a term is a sum of exponentials, so that its logarithm is finite."""
    coef, t = x
    if coef <= 0 or t.op == "exp":
        return coef > 0
    return t.op in ("sum", "reduce_sum", *T.MOVED) and all(map(_of_exponentials, t.kids))


def _asks(t: Term) -> bool:
    """Return whether a term detects NaN or infinity: to cancel `exp(m)` would drop a NaN in `m`."""
    return t.op in T.TRUTHS and any(u.op == "exp" for u in T.below(t))


class Normal:
    """The normal form of terms, computed once for each."""

    def __init__(self, seams: Seams):
        self.seams, self.push = seams, Push()
        self.known: dict[Term, Scaled] = {}
        self.masks: dict[Term, np.ndarray] = {}
        self.finite_in: dict[Term, bool | np.ndarray | None] = {}

    def __call__(self, x: Scaled) -> Scaled:
        coef, t = x
        if not coef:
            return x
        if t not in self.known:
            self.known[t] = self._made(t)
        c, out = self.known[t]
        return T.tidy(coef * c), out

    def piece(self, x: Scaled, place: Sequence[tuple[int, int]]) -> Scaled:
        """Return a block of a term, given by its start and size along every dimension.

        Dimensions along which it has one element are dropped.
        """
        for d, (start, size) in reversed([*enumerate(place)]):
            x = self.push(x, d, BlockMap(start, size, drops=size == 1))
        return x

    def block(self, x: Scaled, place: Sequence[tuple[int, int]]) -> Scaled:
        """Return a block of a term in the normal form."""
        return self(self.piece(x, place))

    def _made(self, t: Term) -> Scaled:
        match t.op:
            case "exp":
                return self.exponential(self(t.kids[0]), t.params)
            case "sum":
                return self.sum([self(kid) for kid in t.kids], t.shape)
            case "product":
                rows = zip(t.kids, t.params, strict=True)
                return self.product([self(kid) for kid, n in rows for _ in range(n)], t.shape)
            case "reciprocal":
                return self.inverse(self(t.kids[0]))
            case "reduce_sum":
                return self.total(t)
            case "dot":
                return self.contracted(t)
            case "select":
                return self.chosen(t)
            case "transpose":
                return self.turned(self(t.kids[0]), t.params)
            case "slice":
                return self.part(t)
        if t.op not in FORMS or _asks(t):
            return 1, t
        return rebuilt(t, [self(kid) for kid in t.kids])

    def part(self, t: Term) -> Scaled:
        """Normalize a slice by moving it down to the arguments."""
        d, start, stride = t.params
        if stride == 1:
            coef, inner = self.push(t.kids[0], d, BlockMap(start, t.shape[d]))
            if inner is not t:
                return self((coef, inner))
        return T.cut(self(t.kids[0]), d, start, t.shape[d], stride)

    def turned(self, x: Scaled, order: Sequence[int]) -> Scaled:
        """Transpose a term by transposing the operands of sums, products and functions."""
        coef, t = x
        alike = all(kid.shape == t.shape for _, kid in t.kids)
        if t.op not in ELEMENTWISE or not alike or not coef:
            return T.transpose(x, order)
        kids = [self.turned(kid, order) for kid in t.kids]
        return T.times(coef, rebuilt(t, kids, tuple(t.shape[d] for d in order)))

    # --- products

    def product(self, parts: Iterable[Scaled], shape: Shape) -> Scaled:
        """Multiply, cancelling exponentials against their reciprocals."""
        coef: T.Coef = 1
        over, under = Counter(), Counter()
        for c, t in parts:
            coef = T.tidy(coef * c)
            powers = factors(t)
            over += powers[0]
            under += powers[1]
        return self.quotient(coef, over, under, shape)

    def quotient(self, coef: T.Coef, over: Factors, under: Factors, shape: Shape) -> Scaled:
        if not coef or any(T.core(base) is T.NOTHING for base in over):
            uncertain = [T.reciprocal((1, base)) for base in under if not positive(base)]
            uncertain += [(1, base) for base in over if not positive(base)]
            return finite.multiply([T.zero(shape), *uncertain], shape)
        for base in [base for base in over if base in under and largest(base)]:
            shared = min(over[base], under[base])
            over[base] -= shared
            under[base] -= shared
        return T.times(coef, quotient_of(over, under, shape))

    def inverse(self, x: Scaled) -> Scaled:
        """Return the reciprocal; that of a reciprocal of an exponential is the exponential."""
        coef, t = x
        over, under = factors(t)
        if not coef or not all(map(positive, under)):
            return T.reciprocal(x)
        return self.quotient(T.over(1, coef), under, over, t.shape)

    # --- exponentials

    def exponential(self, x: Scaled, params: object) -> Scaled:
        """Return the exponential; that of a sum is a product."""
        coef, t = x
        if not coef:
            return T.full((1, T.ONE), t.shape)
        if T.core(t).op == "literal" and T.core(t).params == "-inf" and coef > 0:
            return T.zero(t.shape)
        if t.op == "bcast":
            return T.bcast(self.exponential((coef, t.kids[0][1]), params), t.shape, t.params)
        if t.op == "select":
            which, *cases = t.kids
            exponentials = [self.exponential((T.tidy(coef * c), kid), params) for c, kid in cases]
            return choose(which, exponentials)
        if t.op == "sum":
            parts = [(T.tidy(coef * c), kid) for c, kid in t.kids]
            if all(c > 0 or self.finite(kid) for c, kid in parts):
                exponentials = [self.exponential(part, params) for part in parts]
                return self.product(exponentials, t.shape)
        if coef < 0 and self.finite(t):
            return T.reciprocal(T.elementwise("exp", params, [(-coef, t)], t.shape))
        return T.elementwise("exp", params, [x], t.shape)

    def finite(self, t: Term) -> bool:
        """Return whether no element is infinite, where masks are the only source of infinities."""
        result = self.finite_at(t)
        return result is not None and bool(np.all(result))

    def finite_at(self, t: Term) -> bool | np.ndarray | None:
        """Return which elements are finite, the others being minus infinity; None if not known."""
        if t not in self.finite_in:
            self.finite_in[t] = self._finite_at(t)
        return self.finite_in[t]

    def _finite_at(self, t: Term) -> bool | np.ndarray | None:
        if t.op == "literal":
            return False if t.params == "-inf" else None
        if t.op == "const" and T.has_infinite(t):
            return None
        if T.of(t.op).pole and not _of_exponentials(t.kids[0]):
            return None  # of a mask of zeros and ones it is a mask of minus infinity
        results = [self.finite_at(kid) for _, kid in t.kids]
        if all(result is True for result in results):
            return True
        # An element that is not finite is minus infinity only if its coefficient is positive.
        if any(
            result is not True and coef <= 0
            for result, (coef, _) in zip(results, t.kids, strict=True)
        ):
            return None
        masks = [result for result in results if result is not None]
        if len(masks) < len(results):
            return None
        if t.op == "max" and any(result is True for result in results):
            return True
        if t.op in ("bcast", "reduce_max") and results[0] is False:
            return False
        if np.prod(t.shape, dtype=float) > LARGE:
            return None
        wide = [np.broadcast_to(x, kid.shape) for x, (_, kid) in zip(masks, t.kids, strict=True)]
        mask = self._finite_in(t, wide)
        return True if mask is not None and mask.all() else mask

    def _finite_in(self, t: Term, own: list[np.ndarray]) -> np.ndarray | None:
        match t.op:
            case "bcast":
                shape = [1] * len(t.shape)
                for size, d in zip(own[0].shape, t.params, strict=True):
                    shape[d] = size
                return np.broadcast_to(own[0].reshape(shape), t.shape)
            case "select" if len(own) == 3:
                which = numbers(t.kids[0], self.masks)
                return None if which is None else np.where(which.astype(bool), own[2], own[1])
            case "max":
                return own[0] | own[1]
            case "reduce_max":
                return np.asarray(own[0].any(axis=t.params))
            case "sum":
                return np.logical_and.reduce(own)
            case "exp":
                return np.ones(t.shape, bool)
        return None

    def chosen(self, t: Term) -> Scaled:
        """Normalize a `select`; if its mask is computable, replace the mask by a constant."""
        which, *cases = t.kids
        normalized = [self(case) for case in cases]
        values = numbers(which, self.masks) if len(cases) == 2 else None
        if values is None:
            return choose(self(which), normalized)
        mask = values.astype(bool)
        if mask.all() or not mask.any():
            return normalized[int(bool(mask.any()))]
        constant = T.constant(mask)
        self.masks[constant[1]] = mask.astype(object) * 1
        return choose(constant, normalized)

    # --- sums

    def sum(self, parts: Iterable[Scaled], shape: Shape) -> Scaled:
        """Add, with the common factors of all summands in front."""
        coef, t = finite.add(parts, shape)
        if t.op != "sum" or not coef:
            return coef, t
        rows = [factors(kid) for _, kid in t.kids]
        kept = [
            powers for (_, kid), powers in zip(t.kids, rows, strict=True) if not T.vanishes(kid)
        ]
        if not kept:
            return coef, t
        over, under = kept[0]
        for powers in kept[1:]:
            over, under = over & powers[0], under & powers[1]
        over = Counter({base: n for base, n in over.items() if positive(base)})
        if not over and not under:
            return coef, t
        summands = [
            self.quotient(c, powers[0] - over, powers[1] - under, shape)
            for (c, _), powers in zip(t.kids, rows, strict=True)
        ]
        inner = self.sum(summands, shape)
        return self.product([T.times(coef, inner), quotient_of(over, under, shape)], shape)

    def total(self, t: Term) -> Scaled:
        """Sum along dimensions: by blocks, with factors that are uniform along them in front."""
        kid, along = t.kids[0], t.params
        for d in along:
            pieces = self.seams.pieces([(kid[1], d)], kid[1].shape[d])
            if len(pieces) > 1:
                cut = [
                    T.reduce("sum", self.push(kid, d, BlockMap(*piece)), along) for piece in pieces
                ]
                return self.sum(map(self, cut), t.shape)
        rest, fronts = self.apart(kid, {*along}, t.shape, range(len(t.shape)))
        return self.product([T.reduce("sum", rest, along), *fronts], t.shape)

    def apart(
        self, x: Scaled, summed: set[int], shape: Shape, places: Sequence[int]
    ) -> tuple[Scaled, list[Scaled]]:
        """Return a term without factors that are uniform along summed dimensions, and these.

        `shape` is that of the sum, and `places` are the positions of the other dimensions in it.
        """
        coef, t = self(x)
        over, under = factors(t)
        front = same_along(over, summed), same_along(under, summed)
        rest = self.quotient(coef, over - front[0], under - front[1], t.shape)
        return rest, moved(front, summed, shape, places)

    def contracted(self, t: Term) -> Scaled:
        """Contract: by blocks, with factors that are uniform along summed dimensions in front."""
        (cx, cy), _ = t.params
        x, y = t.kids
        for i, j in zip(cx, cy, strict=True):
            pieces = self.seams.pieces([(x[1], i), (y[1], j)], x[1].shape[i])
            if len(pieces) > 1:
                cut = [
                    contraction(t.params, self.push(x, i, p), self.push(y, j, p), t.shape)
                    for p in (BlockMap(*piece) for piece in pieces)
                ]
                return self.sum(map(self, cut), t.shape)
        rows = zip(t.kids, (cx, cy), places(t.params, x[1], y[1]), strict=True)
        pairs = [self.apart(kid, {*c}, t.shape, [*place.values()]) for kid, c, place in rows]
        rests, fronts = [rest for rest, _ in pairs], [f for _, front in pairs for f in front]
        ones = [i for i in (0, 1) if rests[i][0] and T.is_one(rests[i][1])]
        if ones:
            coef = T.tidy(rests[0][0] * rests[1][0])
            summed = finite.added_up(t.params, 1 - ones[0], rests[0][1], rests[1][1], t.shape)
            inner = T.times(coef, summed)
        else:
            inner = ordered(t.params, rests[0], rests[1], t.shape)
        return self.product([inner, *fronts], t.shape)
