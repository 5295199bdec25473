"""Broadcasts, reshapes and transposes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .node import ONE, Coef, Scaled, Shape, Term, is_uniform, make, times


def full(x: Scaled, shape: Shape) -> Scaled:
    """Broadcast a scalar to a shape."""
    return bcast(x, shape, ())


def zero(shape: Shape) -> Scaled:
    """Return zeros."""
    return 0, full((1, ONE), shape)[1]


def iota(shape: Shape, dimension: int) -> Scaled:
    """Return the index along a dimension."""
    size = shape[dimension]
    if size == 1:
        return zero(shape)
    return bcast((1, make("iota", (), (), (size,))), shape, (dimension,))


def uniform_dims(t: Term) -> set[int]:
    """Return the dimensions along which a term is uniform."""
    if t.op != "bcast":
        return set()
    return set(range(len(t.shape))) - set(t.params)


def strip(t: Term, dims: set[int]) -> Term:
    """Remove some of the dimensions along which a term is uniform."""
    if not dims:
        return t
    keep = [d for d in range(len(t.shape)) if d not in dims]
    shape = tuple(t.shape[d] for d in keep)
    return bcast((1, t.kids[0][1]), shape, tuple(keep.index(d) for d in t.params))[1]


def bcast(x: Scaled, shape: Shape, dims: Sequence[int]) -> Scaled:
    """Broadcast over new dimensions; `dims` are the positions of the dimensions of `x`."""
    dims = tuple(dims)
    if list(dims) != sorted(dims):
        order = sorted(range(len(dims)), key=dims.__getitem__)
        x, dims = transpose(x, order), tuple(dims[d] for d in order)
    coef, t = x
    if t.shape == shape:
        return coef, t
    if 1 in t.shape:
        # Dimensions of size 1 are dropped and broadcast anew, whether they grow or not: one form
        # for both.
        dims = tuple(d for i, d in enumerate(dims) if t.shape[i] != 1)
        coef, t = reshape((coef, t), tuple(size for size in t.shape if size != 1))
        return bcast((coef, t), shape, dims)
    if t.op == "bcast":
        dims = tuple(dims[d] for d in t.params)
        t = t.kids[0][1]
    return coef, make("bcast", dims, ((1, t),), shape)


def beside(
    name: str,
    busy: Iterable[int],
    kids: Sequence[Scaled],
    shape: Shape,
    params: Callable[[Callable[[int], int]], Any],
    coef: Coef = 1,
    also: Sequence[Scaled] = (),
) -> Scaled:
    """Apply a function along the dimensions `busy` before the broadcast of its operands.

    The function leaves the other dimensions unchanged. Where all operands are uniform along them it
    is applied once, so that a device that fills its own rows has the same term as the whole.
    `params` makes its parameters, given the new numbers of dimensions; `coef` is a factor in front;
    the operands `also` do not have these dimensions.
    """
    alike = set(range(len(shape))) - set(busy)
    for _, t in kids:
        alike &= uniform_dims(t)
    keep = [d for d in range(len(shape)) if d not in alike]
    inner = [*((c, strip(t, alike)) for c, t in kids), *also]
    made = make(name, params(keep.index), inner, tuple(shape[d] for d in keep))
    return bcast((coef, made), shape, keep) if coef else zero(shape)


def reshape(x: Scaled, shape: Shape) -> Scaled:
    """Reshape in row-major order; dimensions of size 1 are a `bcast`."""
    coef, t = x
    if t.shape == shape:
        return x
    if t.op == "reshape":
        return reshape((coef, t.kids[0][1]), shape)
    if is_uniform(t):
        return full((coef, t.kids[0][1] if t.shape else t), shape)
    if t.op == "bcast" and math.prod(t.shape) == math.prod(t.kids[0][1].shape):
        return reshape((coef, t.kids[0][1]), shape)
    if t.op == "bcast":
        result = _reshape_spread(t, shape)
        if result is not None:
            return coef, result
    core = tuple(size for size in shape if size != 1)
    inner = t if t.shape == core else make("reshape", (), ((1, t),), core)
    return bcast((coef, inner), shape, tuple(d for d, size in enumerate(shape) if size != 1))


def _reshape_spread(t: Term, shape: Shape) -> Term | None:
    """Return a reshape of a broadcast as a broadcast of a reshape, if that is possible."""
    groups = matched(t.shape, shape)
    if groups is None:
        return None
    inner, sizes, places = t.kids[0][1], [], []
    for old, new in groups:
        dims = [d for d in old if d in t.params]
        if not dims:
            continue
        if [t.shape[d] for d in old if t.shape[d] != 1] != [t.shape[d] for d in dims]:
            return None
        real = [d for d in new if shape[d] != 1]
        sizes += [shape[d] for d in real]
        places += real
    return bcast(reshape((1, inner), tuple(sizes)), shape, places)[1]


def matched(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]] | None:
    """Return the smallest groups of dimensions with equal numbers of elements in both shapes."""
    if 0 in old or 0 in new:
        return None
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        before, after, a, b = [], [], 1, 1
        while True:
            if a <= b and i < len(old) and (a < b or not before):
                a, before, i = a * old[i], [*before, i], i + 1
            elif j < len(new) and (b < a or not after):
                b, after, j = b * new[j], [*after, j], j + 1
            else:
                break
        if a != b:
            return None
        while i < len(old) and old[i] == 1 and j == len(new):
            before, i = [*before, i], i + 1
        groups.append((before, after))
    return groups


def transpose(x: Scaled, order: Sequence[int]) -> Scaled:
    """Permute the dimensions."""
    coef, t = x
    order = tuple(order)
    if order == tuple(range(len(order))):
        return x
    shape = tuple(t.shape[d] for d in order)
    if t.op == "transpose":
        return transpose((coef, t.kids[0][1]), [t.params[d] for d in order])
    if t.op == "bcast":
        place = [order.index(d) for d in t.params]
        ranks = sorted(range(len(place)), key=place.__getitem__)
        inner = transpose((1, t.kids[0][1]), ranks)
        return times(coef, bcast(inner, shape, sorted(place)))
    return coef, make("transpose", order, ((1, t),), shape)


def linear(name: str, params: Any, x: Scaled, shape: Shape) -> Scaled:
    """Apply a linear function of one operand: the coefficient moves in front."""
    coef, t = x
    if not coef:
        return zero(shape)
    return coef, make(name, params, ((1, t),), shape)


def function(name: str, params: Any, kids: Sequence[Scaled], shape: Shape) -> Scaled:
    """Apply a function of whole arrays about which nothing more is known."""
    return 1, make(name, params, kids, shape)
