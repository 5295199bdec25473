"""Recognition of global positions: a device's offset plus a local index.

`axis_index("a") * L + arange(L)` is how programs compute which rows a device has. Literally, it is
a value that differs over a hidden axis; it is also `arange(n * L)` cut along `a`, which is the form
that can be compared.
"""

from __future__ import annotations

from . import term as T
from .term import Coef, Term
from .value import Value, read_as, tidy_dim, whole_shape, whole_size


def as_positions(v: Value) -> Value:
    """Return a sum that numbers the elements of the whole, read as cut."""
    while v.hidden and v.term.op == "sum":
        merged = _pair(v)
        if merged is None:
            return v
        v = merged
    return v


def _pair(v: Value) -> Value | None:
    places: dict[int, tuple[Coef, Term]] = {}
    for coef, t in v.term.kids:
        if t.op == "bcast" and t.kids[0][1].op == "iota":
            places[t.params[0]] = (coef, t)
        elif t.op == "iota":
            places[0] = (coef, t)
    lead = len(v.hidden)
    for i, axis in enumerate(v.hidden):
        if i not in places:
            continue
        for d, dim in enumerate(v.dims):
            size = whole_size(dim)
            if lead + d not in places or len(dim) != 1:
                continue
            if places[i][0] == places[lead + d][0] * size:
                parts = {places[i][1], places[lead + d][1]}
                return _merged(v, axis, d, places[lead + d][0], parts)
    return None


def _merged(v: Value, axis, d: int, step: Coef, parts: set[Term]) -> Value:
    ((size, axes),) = v.dims[d]
    dims = (*v.dims[:d], tidy_dim([(size * axis.size, (axis, *axes))]), *v.dims[d + 1 :])
    rest = [(coef, t) for coef, t in v.term.kids if t not in parts]
    others = [read_as(v.having(kid), dims) for kid in rest]
    hidden = tuple(a for a in v.hidden if a != axis)
    shape = whole_shape(dims, hidden)
    position = T.iota(shape, len(hidden) + d)
    whole = T.add([(step * position[0], position[1]), *(value.scaled for value in others)], shape)
    return v.having((T.tidy(v.coef * whole[0]), whole[1]), dims=dims, hidden=hidden)
