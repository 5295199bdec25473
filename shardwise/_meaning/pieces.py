"""Comparison by elements along a dimension, with slices moved down to the arguments.

Where devices are kept apart, a result is a concatenation of theirs; one device computes the same
numbers as an expression over whole arrays. Compared element by element, with the slice moved down
through elementwise functions, products and reductions, both are the same expressions.
"""

from __future__ import annotations

from .indexing import ELEMENTWISE, Push
from .term import Term
from .value import Value

FEW = 64
"""Dimensions of more elements than this are not compared by element."""


def equal_in_pieces(a: Value, b: Value) -> bool:
    """Return whether two results are the same, element by element along some dimension."""
    if not (a.plain and b.plain) or a.term.shape != b.term.shape:
        return False
    push = Push()
    return any(
        all(push.element(a.scaled, d, i) == push.element(b.scaled, d, i) for i in range(size))
        for d in sorted(_seams(a.term) | _seams(b.term))
        if (size := a.term.shape[d]) <= FEW
    )


def _seams(t: Term) -> set[int]:
    """Return the dimensions along which a term is concatenated."""
    seams: set[int] = set()
    stack, seen = [t], {t}
    while stack:
        top = stack.pop()
        if top.shape != t.shape:
            continue
        inner = top.kids[0][1] if top.op == "bcast" else None
        if top.op == "concatenate":
            seams.add(top.params)
        elif inner is not None and inner.op == "concatenate":
            seams.add(top.params[inner.params])
        for _, kid in top.kids if top.op in ELEMENTWISE else ():
            if kid not in seen:
                seen.add(kid)
                stack.append(kid)
    return seams
