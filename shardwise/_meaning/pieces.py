"""Comparison by elements along a dimension, with slices moved down to the arguments.

Where devices are kept apart, a result is a concatenation of theirs; one device computes the same
numbers as an expression over whole arrays. Compared element by element, with the slice moved down
through elementwise functions, products and reductions, both are the same expressions.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from . import term as T
from .finite import add, contraction, multiply
from .term import BY_ELEMENT, Scaled, Shape, Term
from .value import Value

FEW = 64
"""Dimensions of more elements than this are not compared by element."""


def equal_in_pieces(a: Value, b: Value) -> bool:
    """Return whether two results are the same, element by element along some dimension."""
    if not (a.plain and b.plain) or a.term.shape != b.term.shape:
        return False
    _element.cache_clear()  # cached results would change the counted work
    for d in sorted(_seams(a.term) | _seams(b.term)):
        size = a.term.shape[d]
        if size <= FEW and all(take(a.scaled, d, i) == take(b.scaled, d, i) for i in range(size)):
            return True
    return False


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
        for _, kid in top.kids if top.op in BY_ELEMENT | {"sum", "product"} else ():
            if kid not in seen:
                seen.add(kid)
                stack.append(kid)
    return seams


def take(x: Scaled, d: int, i: int) -> Scaled:
    """Return element `i` along dimension `d`, which is removed."""
    coef, t = x
    if not coef:
        return T.zero(_without(t.shape, d))
    element = _element(t, d, i)
    return T.tidy(coef * element[0]), element[1]


@functools.lru_cache(maxsize=1 << 16)
def _element(t: Term, d: int, i: int) -> Scaled:
    # Subterms are shared: without the cache the work would double with every operation.
    shape = _without(t.shape, d)
    element = _taken(t, d, i, shape)
    return element if element is not None else T.reshape(T.cut((1, t), d, i, 1), shape)


def _taken(t: Term, d: int, i: int, shape: Shape) -> Scaled | None:
    match t.op:
        case "iota":
            return i, T.ONE
        case "bcast":
            return _spread(t, d, i, shape)
        case "sum":
            return add([take(kid, d, i) for kid in t.kids], shape)
        case "product":
            rows = zip(t.kids, t.params, strict=True)
            return multiply([take(kid, d, i) for kid, n in rows for _ in range(n)], shape)
        case "dot":
            return _product(t, d, i, shape)
        case "transpose":
            inner = take(t.kids[0], t.params[d], i)
            order = [dim - (dim > t.params[d]) for e, dim in enumerate(t.params) if e != d]
            return T.transpose(inner, order)
        case "concatenate":
            return _piece(t, d, i, shape)
        case "reshape":
            return _reshaped(t, d, i, shape)
        case "slice":
            along, start, stride = t.params
            if along == d:
                return take(t.kids[0], d, start + i * stride)
            inner = take(t.kids[0], d, i)
            return T.cut(inner, along - (along > d), start, t.shape[along], stride)
        case "reduce_sum" | "reduce_max" | "reduce_min":
            kept = [e for e in range(len(t.kids[0][1].shape)) if e not in t.params]
            source = kept[d]
            inner = take(t.kids[0], source, i)
            return T.reduce(t.op[7:], inner, [e - (e > source) for e in t.params])
    if t.op in BY_ELEMENT and all(kid.shape == t.shape for _, kid in t.kids):
        return T.elementwise(t.op, t.params, [take(kid, d, i) for kid in t.kids], shape)
    return None


def _without(shape: Sequence[int], d: int) -> Shape:
    return (*shape[:d], *shape[d + 1 :])


def _spread(t: Term, d: int, i: int, shape: Shape) -> Scaled:
    places = tuple(e - (e > d) for e in t.params if e != d)
    inner = take(t.kids[0], t.params.index(d), i) if d in t.params else t.kids[0]
    return T.bcast(inner, shape, places)


def _piece(t: Term, d: int, i: int, shape: Shape) -> Scaled:
    if t.params != d:
        rest = t.params - (t.params > d)
        return T.concatenate([take(kid, d, i) for kid in t.kids], rest, shape)
    for coef, kid in t.kids:
        if i < kid.shape[d]:
            return take((coef, kid), d, i)
        i -= kid.shape[d]
    raise AssertionError("an element beyond the end")


def _reshaped(t: Term, d: int, i: int, shape: Shape) -> Scaled | None:
    inner = t.kids[0][1]
    for old, new in T.matched(inner.shape, t.shape) or ():
        real = [e for e in new if t.shape[e] != 1]
        if real and real[0] == d and len(old) == 1:
            step = inner.shape[old[0]] // t.shape[d]
            if step == 1:
                return T.reshape(take((1, inner), old[0], i), shape)
            return T.reshape(T.cut((1, inner), old[0], i * step, step), shape)
    return None


def _product(t: Term, d: int, i: int, shape: Shape) -> Scaled:
    """Return an element of a contraction: of both operands along a batch, else of one."""
    (cx, cy), (bx, by) = t.params
    x, y = t.kids
    fx = [e for e in range(len(x[1].shape)) if e not in cx and e not in bx]
    fy = [e for e in range(len(y[1].shape)) if e not in cy and e not in by]
    dim_x = dim_y = -1
    if d < len(bx):
        dim_x, dim_y = bx[d], by[d]
    elif d < len(bx) + len(fx):
        dim_x = fx[d - len(bx)]
    else:
        dim_y = fy[d - len(bx) - len(fx)]
    if dim_x >= 0:
        x, cx, bx = take(x, dim_x, i), _renumbered(cx, dim_x), _renumbered(bx, dim_x)
    if dim_y >= 0:
        y, cy, by = take(y, dim_y, i), _renumbered(cy, dim_y), _renumbered(by, dim_y)
    return contraction(((cx, cy), (bx, by)), x, y, shape)


def _renumbered(dims: Sequence[int], gone: int) -> tuple[int, ...]:
    return tuple(e - (e > gone) for e in dims if e != gone)
