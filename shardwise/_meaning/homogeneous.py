"""Loops that are linear in carried values: a factor of the start is a factor of the end.

The backward pass of a `scan` over layers carries a gradient from layer to layer. A device's own
mean starts it with another factor than the mean over all devices, and the average comes after the
loop. The factor can be moved out of the loop if every step is linear in the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from . import term as T
from .term import Coef, Scaled, Term, of

ZERO = -1
"""The degree of zero, which is compatible with any."""


def hoisted(
    starts: Sequence[Scaled], symbols: Sequence[Term], outs: Sequence[Scaled], length: int
) -> tuple[list[Scaled], list[Coef]]:
    """Move a factor out of a loop, from the initial carry to the results.

    `symbols` stand for the carried values, and `outs` are the results of one iteration. Return the
    initial carry without the factor, and the factors of the results.
    """
    coef, carriers = _lead(starts, symbols, outs[: len(starts)])
    degrees = [_degree(out, carriers) for out in outs]
    if not length or None in degrees:
        return [*starts], [1 for _ in outs]
    reduced = [
        (T.over(c, coef) if symbol in carriers else c, t)
        for (c, t), symbol in zip(starts, symbols, strict=True)
    ]
    return reduced, [T.tidy(Fraction(coef) ** max(d or 0, 0)) for d in degrees]


def _lead(
    starts: Sequence[Scaled], symbols: Sequence[Term], carried: Sequence[Scaled]
) -> tuple[Coef, frozenset[Term]]:
    """Return the factor that can be moved out of a loop, and the symbols that carry it."""
    carriers = frozenset(symbols)
    while carriers:
        degrees = [_degree(value, carriers) for value in carried]
        rows = [*zip(symbols, degrees, strict=True)]
        # Every value that is carried with the factor must return with it, and no other may.
        if any(d not in (0, ZERO) for symbol, d in rows if symbol not in carriers):
            return 1, frozenset()
        kept = frozenset(symbol for symbol, d in rows if symbol in carriers and d in (1, ZERO))
        if kept == carriers:
            break
        carriers = kept
    coefs = [c for (c, _), symbol in zip(starts, symbols, strict=True) if symbol in carriers and c]
    return (coefs[0], carriers) if coefs else (1, frozenset())


def _degree(x: Scaled, symbols: frozenset[Term]) -> int | None:
    """Return the degree of a term in the symbols; None if it is not homogeneous in them."""
    known: dict[Term, int | None] = {}

    def own(t: Term) -> int | None:
        if t in symbols:
            return 1
        kids = [known[kid] if c else ZERO for c, kid in t.kids]
        if all(d in (0, ZERO) for d in kids):
            return 0
        degrees = [d for d in kids if d is not None]
        if len(degrees) < len(kids):
            return None
        match t.op:
            case "product":
                return sum(d * n for d, n in zip(degrees, t.params, strict=True))
            case "dot":
                return sum(degrees)
            case "select" if degrees[0] == 0:
                return _alike(degrees[1:])
            case "scatter_add" if degrees[0] == 0:
                return degrees[1]
        return _alike(degrees) if of(t.op).linear == "all" else None

    return T.bottom_up(x[1], known, own) if x[0] else ZERO


def _alike(degrees: Sequence[int]) -> int | None:
    distinct = {d for d in degrees if d != ZERO} or {ZERO}
    return distinct.pop() if len(distinct) == 1 else None
