"""Reductions along dimensions, slices and concatenations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from .algebra import add
from .node import ONE, Scaled, Shape, Term, make, over, tidy
from .operations import of
from .spread import (
    bcast,
    beside,
    full,
    iota,
    matched,
    reshape,
    strip,
    transpose,
    uniform_dims,
    zero,
)


def reduce(name: str, x: Scaled, axes: Iterable[int]) -> Scaled:
    """Reduce by `sum`, `max`, `min` and so on; a sum along uniform dimensions is a factor."""
    coef, t = x
    axes = set(axes)
    if not axes:
        return x
    shape = tuple(s for d, s in enumerate(t.shape) if d not in axes)
    if name == "sum" and not coef:
        return zero(shape)
    if all(t.shape[d] == 1 for d in axes):  # the sum, maximum and minimum of one element
        return reshape(x, shape)
    alike = uniform_dims(t) & axes
    counted = name == "sum" or of(name).idempotent
    if name != "sum" and any(not t.shape[d] for d in axes):
        alike = set()  # without elements the result is the initial value
    if alike and counted:
        count = math.prod(t.shape[d] for d in alike) if name == "sum" else 1
        keep = [d for d in range(len(t.shape)) if d not in alike]
        inner = tidy(coef * count), strip(t, alike)
        return reduce(name, inner, [keep.index(d) for d in axes - alike])
    if t.op == "bcast" and axes <= {*t.params} and counted:
        inner = reduce(name, (coef, t.kids[0][1]), [t.params.index(d) for d in axes])
        kept = [d for d in range(len(t.shape)) if d not in axes]
        places = [kept.index(d) for d in t.params if d not in axes]
        return bcast(inner, shape, places)
    if t.op == "transpose":
        inner = reduce(name, (coef, t.kids[0][1]), [t.params[d] for d in axes])
        kept = [t.params[d] for d in range(len(t.shape)) if d not in axes]
        return transpose(inner, [sorted(kept).index(d) for d in kept])
    if t.op == "reshape" and len(axes) == len(t.shape):
        return reduce(name, (coef, t.kids[0][1]), range(len(t.kids[0][1].shape)))
    if t.op == "reshape":
        before = _before_reshape(t, axes)
        if before is not None:
            return reshape(reduce(name, (coef, t.kids[0][1]), before), shape)
    if t.op == "loop" and isinstance(t.params[0], tuple) and axes != {t.params[0][1]}:
        return _reduce_each_turn(name, x, axes)
    nests = name == "sum" or (name in ("max", "min") and coef > 0) or coef == 1
    if t.op == f"reduce_{name}" and nests:
        inside = t.kids[0][1]
        kept = [d for d in range(len(inside.shape)) if d not in t.params]
        whole = {*t.params, *(kept[d] for d in axes)}
        return reduce(name, (tidy(coef * t.kids[0][0]), inside), whole)
    outside = coef if name == "sum" else 1
    inner = (1, t) if name == "sum" else (coef, t)
    return outside, make(f"reduce_{name}", tuple(sorted(axes)), (inner,), shape)


def _reduce_each_turn(name: str, x: Scaled, axes: set[int]) -> Scaled:
    """Reduce what a loop stacks: the other dimensions are reduced in each iteration.

    So one form stands for a sum within a loop and for a sum of what the loop returns.
    """
    coef, t = x
    (carried, at), outs, *settings = t.params
    factor, stacked = t.kids[outs - 1]
    kept = [d for d in range(len(t.shape)) if d == at or d not in axes]
    inside = [d - (d > at) for d in axes if d != at]
    coef, stacked = reduce(name, (tidy(coef * factor), stacked), inside)
    kids = (*t.kids[: outs - 1], (1, stacked), *t.kids[outs:])
    params = ((carried, kept.index(at)), outs, *settings)
    result = coef, make("loop", params, kids, tuple(t.shape[d] for d in kept))
    return reduce(name, result, {kept.index(at)} if at in axes else ())


def _before_reshape(t: Term, axes: set[int]) -> list[int] | None:
    """Return the dimensions that a reshape turns into `axes` and no others, else None."""
    dims: list[int] = []
    for old, new in matched(t.kids[0][1].shape, t.shape) or ():
        reduced = axes.intersection(new)
        if reduced and reduced != {d for d in new if t.shape[d] != 1 or d in axes}:
            return None
        dims += old if reduced else []
    return dims or None


def cut(x: Scaled, d: int, start: int, size: int, stride: int = 1) -> Scaled:
    """Slice along one dimension; slices of slices and of concatenations are merged."""
    coef, t = x
    if (start, size, stride) == (0, t.shape[d], 1):
        return x
    shape = (*t.shape[:d], size, *t.shape[d + 1 :])
    if not coef:
        return zero(shape)
    if t.op == "bcast":
        if d not in t.params:
            return coef, make("bcast", t.params, t.kids, shape)
        inner = cut((coef, t.kids[0][1]), t.params.index(d), start, size, stride)
        return bcast(inner, shape, t.params)
    if t.op == "iota":
        spaced = iota(shape, 0)
        return add(
            [(tidy(coef * stride * spaced[0]), spaced[1]), full((coef * start, ONE), shape)], shape
        )
    if t.op == "slice" and t.params[0] == d:
        _, first, step = t.params
        return cut((coef, t.kids[0][1]), d, first + start * step, size, step * stride)
    if t.op == "slice" and t.params[0] > d:
        # Slices along several dimensions are applied in the order of the dimensions.
        inner = cut((coef, t.kids[0][1]), d, start, size, stride)
        return cut(inner, t.params[0], t.params[1], t.shape[t.params[0]], t.params[2])
    if t.op == "concatenate" and t.params == d and stride == 1:
        return _cut_pieces(x, d, start, size, shape)
    if t.op == "pad" and len(t.kids) == 1 and stride == 1:
        result = _cut_padding(x, d, start, size, shape)
        if result is not None:
            return result
    if t.op == "reshape" and stride == 1:
        result = _cut_reshape(t, d, start, size, shape)
        if result is not None:
            return coef, result
    return coef, make("slice", (d, start, stride), ((1, t),), shape)


def _cut_pieces(x: Scaled, d: int, start: int, size: int, shape: Shape) -> Scaled:
    coef, t = x
    pieces, offset = [], 0
    for c, kid in t.kids:
        low, high = max(start, offset), min(start + size, offset + kid.shape[d])
        if low < high:
            pieces.append(cut((tidy(coef * c), kid), d, low - offset, high - low))
        offset += kid.shape[d]
    return concatenate(pieces, d, shape)


def _cut_padding(x: Scaled, d: int, start: int, size: int, shape: Shape) -> Scaled | None:
    """Slice an array that is padded with zeros at its ends: zeros, a slice of it, zeros."""
    coef, t = x
    if len(t.params) != 1 or t.params[0][0] != d or t.params[0][3] or min(t.params[0][1:3]) < 0:
        return None
    inner, first = t.kids[0][1], t.params[0][1]
    low, high = max(start, first), min(start + size, first + inner.shape[d])
    if low >= high:
        return zero(shape)
    pieces = [
        zero((*shape[:d], low - start, *shape[d + 1 :])),
        cut((coef, inner), d, low - first, high - low),
        zero((*shape[:d], start + size - high, *shape[d + 1 :])),
    ]
    return concatenate([piece for piece in pieces if piece[1].shape[d]], d, shape)


def _cut_reshape(t: Term, d: int, start: int, size: int, shape: Shape) -> Term | None:
    """Move a slice along the first dimension of a group before the reshape that makes it."""
    inner = t.kids[0][1]
    for old, new in matched(inner.shape, t.shape) or ():
        if new and new[0] == d and len(old) == 1:
            step = math.prod(t.shape[e] for e in new[1:])
            return reshape(cut((1, inner), old[0], start * step, size * step), shape)[1]
    return None


def concatenate(pieces: Sequence[Scaled], d: int, shape: Shape) -> Scaled:
    """Concatenate; adjacent slices of one array are merged."""
    flat: list[Scaled] = []
    for coef, t in pieces:
        if t.op == "concatenate" and t.params == d:
            flat += [(tidy(coef * c), kid) for c, kid in t.kids]
        else:
            flat.append((coef, t))
    joined: list[Scaled] = []
    for piece in flat:
        merged = _neighbours(joined[-1], piece, d) if joined else None
        joined = [*joined[:-1], merged] if merged is not None else [*joined, piece]
    if len(joined) == 1:
        return joined[0]
    lead = next((c for c, _ in joined if c), 0)
    if not lead:
        return zero(shape)
    kids = [(over(c, lead), t) for c, t in joined]
    return beside("concatenate", [d], kids, shape, lambda number: number(d), lead)


def _neighbours(a: Scaled, b: Scaled, d: int) -> Scaled | None:
    """Return two pieces merged, if they are adjacent in one array."""
    (coef, s), (factor, t) = a, b
    size = s.shape[d] + t.shape[d]
    if not coef and not factor:
        return zero((*s.shape[:d], size, *s.shape[d + 1 :]))
    if coef != factor:
        return None
    if s.op == t.op == "bcast" and s.params == t.params and s.kids == t.kids and d not in s.params:
        return coef, make("bcast", s.params, s.kids, (*s.shape[:d], size, *s.shape[d + 1 :]))
    if s.op == t.op == "bcast" and s.params == t.params and d in s.params:
        merged = _neighbours((1, s.kids[0][1]), (1, t.kids[0][1]), s.params.index(d))
        shape = (*s.shape[:d], size, *s.shape[d + 1 :])
        return (
            None if merged is None else bcast((tidy(coef * merged[0]), merged[1]), shape, s.params)
        )
    if not (s.op == t.op == "slice" and s.kids == t.kids and s.params[0] == t.params[0] == d):
        return None
    if s.params[2] != 1 or t.params != (d, s.params[1] + s.shape[d], 1):
        return None
    return cut((coef, s.kids[0][1]), d, s.params[1], size)
