"""Sums and products of data, of which any element may be infinite or NaN.

`x - x` and `0 * x` are not 0 where `x` is NaN or infinite: the number 0 in a product with such data
stays (`term.NOTHING`). Coordinates, constants and truth values are always finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import term as T
from .bits import bounds
from .term import Scaled, Shape, Term


def may_be_nan(t: Term) -> bool:
    """Whether a term has elements that may be infinite or NaN."""
    return T.core(t).op not in T.TRUTHS and bounds((1, t)) is None


def add(parts: Iterable[Scaled], shape: Shape) -> Scaled:
    """A sum in which data that cancels leaves its NaN behind."""
    lost: list[Scaled] = []
    made = T.add(parts, shape, lost)
    left = [multiply([T.zero(shape), (1, t)], shape) for _, t in lost if may_be_nan(t)]
    return T.add([made, *left], shape) if left else made


def multiply(parts: Sequence[Scaled], shape: Shape) -> Scaled:
    """A product in which data keeps its NaN beside a zero."""
    if all(coef for coef, _ in parts):
        return T.multiply(parts, shape)
    kept = [(1, t) for coef, t in parts if coef and may_be_nan(t)]
    return T.multiply([T.full((1, T.NOTHING), shape), *kept], shape) if kept else T.zero(shape)


def contraction(params: object, x: Scaled, y: Scaled, shape: Shape) -> Scaled:
    """A contraction of two scaled terms; beside zeros data keeps its NaN."""
    coef = T.tidy(x[0] * y[0])
    if coef:
        return coef, T.make("dot", params, ((1, x[1]), (1, y[1])), shape)
    if not any(c and may_be_nan(t) for c, t in (x, y)):
        return T.zero(shape)
    kids = tuple((1, t) if c else T.zero(t.shape) for c, t in (x, y))
    return 1, T.make("dot", params, kids, shape)
