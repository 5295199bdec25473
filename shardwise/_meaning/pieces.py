"""Results compared piece by piece, where one of them is put together from parts.

Devices that are kept apart give a result as a concatenation of theirs; one device gives the same
numbers as an expression over whole arrays. Cut into slices, with the cut carried down through what
acts by element, both are the same expressions.
"""

from __future__ import annotations

from . import term as T
from .elementwise import POINTWISE
from .term import Scaled, Term
from .value import Value

FEW = 64
"""Dimensions of more elements than this are not cut into single ones."""

BY_ELEMENT = frozenset(POINTWISE) | {
    "select",
    "zero",
    "ne",
    "negative",
    "positive",
    "nonpositive",
    "nonnegative",
    "truncate",
    "nonzero",
}


def equal_in_pieces(a: Value, b: Value) -> bool:
    """Whether two results are the same, slice by slice along some dimension."""
    if not (a.plain and b.plain) or a.term.shape != b.term.shape:
        return False
    for d in sorted(_seams(a.term) | _seams(b.term)):
        size = a.term.shape[d]
        if size <= FEW and all(
            _piece(a.scaled, d, i) == _piece(b.scaled, d, i) for i in range(size)
        ):
            return True
    return False


def _seams(t: Term) -> set[int]:
    """The dimensions along which a term is put together."""
    found: set[int] = set()
    stack, seen = [t], {t}
    while stack:
        top = stack.pop()
        if top.shape != t.shape:
            continue
        if top.op == "concatenate":
            found.add(top.params)
        for _, kid in top.kids if top.op in BY_ELEMENT | {"sum", "product"} else ():
            if kid not in seen:
                seen.add(kid)
                stack.append(kid)
    return found


def _piece(x: Scaled, d: int, i: int) -> Scaled:
    """Element `i` along a dimension, with the cut carried down."""
    coef, t = x
    shape = (*t.shape[:d], 1, *t.shape[d + 1 :])
    if t.op == "sum":
        made = T.add([_piece(kid, d, i) for kid in t.kids], shape)
    elif t.op == "product":
        parts = [
            _piece(kid, d, i) for kid, n in zip(t.kids, t.params, strict=True) for _ in range(n)
        ]
        made = T.multiply(parts, shape)
    elif t.op in BY_ELEMENT and all(kid.shape == t.shape for _, kid in t.kids):
        made = T.elementwise(t.op, t.params, [_piece(kid, d, i) for kid in t.kids], shape)
    elif t.op == "concatenate" and t.params == d:
        at = i
        for c, kid in t.kids:
            if at < kid.shape[d]:
                made = _piece((c, kid), d, at)
                break
            at -= kid.shape[d]
        else:
            raise AssertionError("a piece beyond the end")
    else:
        made = T.cut((1, t), d, i, 1)
    return T.tidy(coef * made[0]), made[1]
