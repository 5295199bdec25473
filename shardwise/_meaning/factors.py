"""Factors of terms, and contractions with their operands in a fixed order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from . import term as T
from .finite import contraction
from .term import Scaled, Shape, Term

Factors = Counter[Term]

LARGEST = T.operations(
    lambda p: p.combines in ("max", "min") and (p.pointwise or p.acts == "reduces")
)
"""Operations that return a largest or smallest score."""


def factors(t: Term) -> tuple[Factors, Factors]:
    """Return the factors of a term and its divisors."""
    over, under = Counter(), Counter()
    inner = t.kids[0][1] if t.op == "bcast" else t
    if inner.op == "product":
        rows = [(kid, n) for (_, kid), n in zip(inner.kids, inner.params, strict=True)]
    else:
        rows = [(inner, 1)]
    for kid, n in rows:
        wide = T.bcast((1, kid), t.shape, t.params)[1] if inner is not t else kid
        core = wide.kids[0][1] if wide.op == "bcast" else wide
        if core.op == "reciprocal" and core.kids[0][0] == 1:
            base = core.kids[0][1]
            if core is not wide:
                base = T.bcast((1, base), wide.shape, wide.params)[1]
            under[base] += n
        elif not T.is_one(wide):
            over[wide] += n
    return over, under


def positive(t: Term) -> bool:
    """Return whether a term is an exponential, which is never zero."""
    return T.core(t).op == "exp"


def largest(t: Term) -> bool:
    """Return whether a term is the exponential of the largest of several numbers."""
    inner = T.core(t)
    return inner.op == "exp" and T.core(inner.kids[0][1]).op in LARGEST


def same_along(own: Factors, dims: set[int]) -> Factors:
    """Return the factors that are uniform along some dimensions, of which a sum is a multiple."""
    return Counter(
        {base: n for base, n in own.items() if dims <= T.uniform_dims(base) and not _infinite(base)}
    )


def _infinite(t: Term) -> bool:
    """Return whether a factor is known to be infinite or NaN, as `1 / 0` is."""
    core = T.core(t)
    return T.not_finite(core) or (core.op == "reciprocal" and not core.kids[0][0])


def moved(
    front: tuple[Factors, Factors], gone: set[int], shape: Shape, places: Sequence[int]
) -> list[Scaled]:
    """Remove some dimensions from factors and broadcast them to the shape of a result."""
    out: list[Scaled] = []
    for base in front[0].elements():
        out.append(T.bcast((1, T.strip(base, gone)), shape, places))
    for base in front[1].elements():
        out.append(T.reciprocal(T.bcast((1, T.strip(base, gone)), shape, places)))
    return out


def quotient_of(over: Factors, under: Factors, shape: Shape) -> Scaled:
    """Return the product of factors and of the reciprocals of divisors."""
    below = [T.reciprocal((1, base)) for base in under.elements()]
    return T.multiply([*((1, base) for base in over.elements()), *below], shape)


def ordered(params: tuple, x: Scaled, y: Scaled, shape: Shape) -> Scaled:
    """Return a contraction with its operands in a fixed order and without transposes inside."""
    (cx, cy), (bx, by) = params
    x, cx, bx, fx = upright(x, cx, bx)
    y, cy, by, fy = upright(y, cy, by)
    lead = len(bx)
    # The origin of each dimension of the result: a batch, or free in x or in y.
    names = [*(("b", i) for i in range(lead)), *(("x", e) for e in fx), *(("y", e) for e in fy)]
    if y[1].number < x[1].number:
        x, y, cx, cy, bx, by, fx, fy = y, x, cy, cx, by, bx, fy, fx
        first, second = "y", "x"
    else:
        first, second = "x", "y"
    pairs = sorted(zip(cx, cy, strict=True))
    batch = sorted(range(lead), key=lambda i: bx[i])
    new = [
        *(("b", i) for i in batch),
        *((first, e) for e in sorted(fx)),
        *((second, e) for e in sorted(fy)),
    ]
    order = [new.index(name) for name in names]
    numbers = (
        (tuple(i for i, _ in pairs), tuple(j for _, j in pairs)),
        (tuple(bx[i] for i in batch), tuple(by[i] for i in batch)),
    )
    transposed = [0] * len(shape)
    for d, at in enumerate(order):
        transposed[at] = shape[d]
    return T.transpose(contraction(numbers, x, y, tuple(transposed)), order)


def upright(x: Scaled, summed: Sequence[int], batch: Sequence[int]):
    """Return an operand before it was transposed: its summed, batch and free dimensions."""
    coef, t = x
    free = [e for e in range(len(t.shape)) if e not in summed and e not in batch]
    if t.op != "transpose":
        return x, summed, batch, free
    rows = (tuple(t.params[e] for e in row) for row in (summed, batch))
    return T.times(coef, t.kids[0]), *rows, [t.params[e] for e in free]
