"""Sums and products of data that may be infinite or NaN.

`x - x` and `0 * x` are not 0 where `x` is NaN or infinite: the number 0 in a product with such data
is kept (`term.NOTHING`). Coordinates, constants and booleans are always finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import term as T
from .bits import bounds
from .term import Scaled, Shape, Term


def may_be_nan(t: Term) -> bool:
    """Return whether a term has elements that may be infinite or NaN."""
    core = T.core(t)
    return core.op not in T.TRUTHS and core is not T.NOTHING and bounds((1, t)) is None


def add(parts: Iterable[Scaled], shape: Shape) -> Scaled:
    """Add; data that cancels leaves a zero that may be NaN."""
    lost: list[Scaled] = []
    total = T.add(parts, shape, lost)
    nans = [multiply([T.zero(shape), (1, t)], shape) for _, t in lost if may_be_nan(t)]
    return T.add([total, *nans], shape) if nans else total


def multiply(parts: Sequence[Scaled], shape: Shape) -> Scaled:
    """Multiply; data that may be NaN is kept in a product with zero."""
    if all(coef for coef, _ in parts):
        return T.multiply(parts, shape)
    kept = [(1, t) for coef, t in parts if coef and may_be_nan(t)]
    return T.multiply([T.full((1, T.NOTHING), shape), *kept], shape) if kept else T.zero(shape)


def contraction(numbers: Any, x: Scaled, y: Scaled, shape: Shape) -> Scaled:
    """Contract two scaled terms; data that may be NaN is kept in a product with zero."""
    coef = T.tidy(x[0] * y[0])
    if coef:
        return coef, T.make("dot", numbers, ((1, x[1]), (1, y[1])), shape)
    at = 0 if x[0] else 1
    if not (x, y)[at][0] or not may_be_nan((x, y)[at][1]):
        return T.zero(shape)
    return multiply([T.zero(shape), added_up(numbers, at, x[1], y[1], shape)], shape)


def added_up(numbers: Any, at: int, x: Term, y: Term, shape: Shape) -> Scaled:
    """Contract operand `at` with ones: sum it along the contracted dimensions."""
    place = places(numbers, x, y)[at]
    return T.bcast(T.reduce("sum", (1, (x, y)[at]), numbers[0][at]), shape, [*place.values()])


def places(numbers: Any, x: Term, y: Term) -> list[dict[int, int]]:
    """Return for both operands of a contraction the positions of dimensions in the result.

    It has batch dimensions, then the free ones of the first and of the second operand.
    """
    end, rows = len(numbers[1][0]), []
    for t, summed, batch in zip((x, y), *numbers, strict=True):
        place: dict[int, int] = {}
        for d in range(len(t.shape)):
            if d not in summed:
                place[d] = batch.index(d) if d in batch else end
                end += d not in batch
        rows.append(place)
    return rows
