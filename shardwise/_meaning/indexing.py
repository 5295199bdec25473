"""Index maps, pushed through a term to its arguments.

A block of an expression is the same expression of blocks of its operands, and so are one element
along a dimension, or two dimensions merged into one: as long as each dimension of the result is a
dimension of the operands. `FORMS` has the dimensions of each operation and how it is applied to
other operands. Whatever moves an index map through a term uses it: comparison by elements
(`pieces`), by blocks (`blocks`), and with merged dimensions (`merged`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from . import term as T
from .finite import add, contraction, multiply, places
from .term import BY_ELEMENT, Scaled, Shape, Term

CHANGED = -1
"""In place of an operand's dimension: the operation itself acts along that dimension."""

Row = Sequence[int | None]
"""For each dimension of a result that of an operand; None if the operand does not have it."""

Renumber = Callable[[Sequence[int]], tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Form:
    """How the dimensions of an operation relate to those of its operands."""

    rows: Callable[[Term], Sequence[Row]]
    """For each operand, its dimensions."""
    build: Callable[[Term, Sequence[Scaled], Shape, Renumber, Sequence[Renumber]], Scaled]
    """Apply the operation of a term to other operands, for a result of another shape.

    The functions renumber the dimensions of the result, and those of each operand.
    """


def _alike(t: Term) -> list[Row]:
    dims = range(len(t.shape))
    return [dims if kid.shape == t.shape else [CHANGED for _ in dims] for _, kid in t.kids]


def _spread(t: Term) -> list[Row]:
    places = {d: i for i, d in enumerate(t.params)}
    return [[places.get(d) for d in range(len(t.shape))]]


def _reduced(t: Term) -> list[Row]:
    return [[e for e in range(len(t.kids[0][1].shape)) if e not in t.params]]


def _beside(along: int, t: Term) -> list[Row]:
    row = [CHANGED if d == along else d for d in range(len(t.shape))]
    return [row for _ in t.kids]


def _reshaped(t: Term) -> list[Row]:
    inner, row = t.kids[0][1].shape, [CHANGED for _ in t.shape]
    for old, new in T.matched(inner, t.shape) or ():
        before = [e for e in old if inner[e] != 1]
        after = [d for d in new if t.shape[d] != 1]
        if len(before) == len(after) == 1:
            row[after[0]] = before[0]
    return [row]


def _contracted(t: Term) -> list[Row]:
    (_, x), (_, y) = t.kids
    rows = [{d: e for e, d in row.items()} for row in places(t.params, x, y)]
    return [[row.get(d) for d in range(len(t.shape))] for row in rows]


def _repeated(kids: Sequence[Scaled], powers: Sequence[int]) -> list[Scaled]:
    return [kid for kid, power in zip(kids, powers, strict=True) for _ in range(power)]


def _dot(t: Term, kids: Sequence[Scaled], shape: Shape, inside: Sequence[Renumber]) -> Scaled:
    params = tuple((inside[0](dims_x), inside[1](dims_y)) for dims_x, dims_y in t.params)
    return contraction(params, kids[0], kids[1], shape)


def _elementwise(t: Term, kids: Sequence[Scaled], shape: Shape, *_: object) -> Scaled:
    if T.of(t.op).commutes:
        kids = sorted(kids, key=lambda kid: (kid[1].number, kid[0]))
    return T.elementwise(t.op, t.params, kids, shape)


ELEMENTWISE = BY_ELEMENT | {"sum", "product"}
"""Operations on elements at the same place."""

FORMS: dict[str, Form] = {
    **dict.fromkeys(BY_ELEMENT, Form(_alike, _elementwise)),
    **dict.fromkeys(
        T.REDUCED,
        Form(
            _reduced,
            lambda t, kids, shape, here, inside: T.reduce(t.op[7:], kids[0], inside[0](t.params)),
        ),
    ),
    "sum": Form(_alike, lambda t, kids, shape, *_: add(kids, shape)),
    "product": Form(_alike, lambda t, kids, shape, *_: multiply(_repeated(kids, t.params), shape)),
    "reciprocal": Form(_alike, lambda t, kids, *_: T.reciprocal(kids[0])),
    "bcast": Form(
        _spread, lambda t, kids, shape, here, inside: T.bcast(kids[0], shape, here(t.params))
    ),
    "transpose": Form(
        lambda t: [t.params],
        lambda t, kids, shape, here, inside: T.transpose(kids[0], inside[0](t.params)),
    ),
    "reshape": Form(_reshaped, lambda t, kids, shape, *_: T.reshape(kids[0], shape)),
    "concatenate": Form(
        lambda t: _beside(t.params, t),
        lambda t, kids, shape, here, inside: T.concatenate(kids, here([t.params])[0], shape),
    ),
    "slice": Form(
        lambda t: _beside(t.params[0], t),
        lambda t, kids, shape, here, inside: T.cut(
            kids[0], here(t.params[:1])[0], t.params[1], t.shape[t.params[0]], t.params[2]
        ),
    ),
    "dot": Form(_contracted, lambda t, kids, shape, here, inside: _dot(t, kids, shape, inside)),
}
"""The operations through which index maps can be pushed."""


def rows_of(t: Term) -> Sequence[Row]:
    """Return for each operand the dimensions that those of the result are."""
    form = FORMS.get(t.op)
    return form.rows(t) if form is not None else [[CHANGED for _ in t.shape] for _ in t.kids]


def rebuilt(t: Term, kids: Sequence[Scaled], shape: Shape | None = None) -> Scaled:
    """Return the operation of a term applied to other operands, along the same dimensions."""
    if tuple(kids) == t.kids:
        return 1, t
    shape = t.shape if shape is None else shape
    if t.op in FORMS:
        return FORMS[t.op].build(t, kids, shape, tuple, [tuple for _ in kids])
    return 1, T.make(t.op, t.params, kids, shape)


@dataclasses.dataclass(frozen=True)
class BlockMap:
    """The index map of a block along a dimension, or of one element, which drops the dimension."""

    start: int
    size: int
    stride: int = 1
    drops: bool = False

    def shape(self, shape: Shape, d: int) -> Shape:
        """Return the shape of the part along dimension `d`."""
        return (*shape[:d], *(() if self.drops else (self.size,)), *shape[d + 1 :])

    def source(self, row: Row, d: int) -> int | None:
        """Return an operand's dimension along which to take the same part."""
        return row[d]

    def renumbered(self, dims: Sequence[int], d: int) -> tuple[int, ...]:
        """Return dimensions as they are numbered in the part."""
        return tuple(e - (e > d) for e in dims if e != d) if self.drops else tuple(dims)

    def stop(self, push: Push, t: Term, d: int) -> Scaled | None:
        """Return the part of a term whose operation acts along the dimension."""
        shape = self.shape(t.shape, d)
        if t.op == "slice":
            _, first, stride = t.params
            start = first + self.start * stride
            inner = dataclasses.replace(self, start=start, stride=stride * self.stride)
            return push(t.kids[0], d, inner)
        if t.op == "concatenate" and self.stride == 1:
            pieces, offset = [], 0
            for kid in t.kids:
                length = kid[1].shape[d]
                low, high = max(self.start, offset), min(self.start + self.size, offset + length)
                if low < high:
                    part = dataclasses.replace(self, start=low - offset, size=high - low)
                    pieces.append(push(kid, d, part))
                offset += length
            return pieces[0] if self.drops else T.concatenate(pieces, d, shape)
        return T.reshape(T.cut((1, t), d, self.start, self.size, self.stride), shape)


@dataclasses.dataclass(frozen=True)
class Merge:
    """The index map that merges a dimension and the next, if they were divided from one."""

    def shape(self, shape: Shape, d: int) -> Shape:
        """Return the shape with dimensions `d` and `d + 1` merged."""
        return (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])

    def source(self, row: Row, d: int) -> int | None:
        """Return the first of an operand's dimensions to merge."""
        first, second = row[d], row[d + 1]
        if first is None or second is None:
            return None if first is second else CHANGED
        return first if first != CHANGED and second == first + 1 else CHANGED

    def renumbered(self, dims: Sequence[int], d: int) -> tuple[int, ...]:
        """Return dimensions as they are numbered after the merge."""
        return tuple(dict.fromkeys(e - (e > d) for e in dims))

    def stop(self, push: Push, t: Term, d: int) -> Scaled | None:
        """Return the term without the division; None if something else made the dimensions."""
        if t.op != "reshape":
            return None
        groups = T.matched(t.kids[0][1].shape, t.shape) or ()
        together = any(d in new and d + 1 in new for _, new in groups)
        return T.reshape(t.kids[0], self.shape(t.shape, d)) if together else None


class Push:
    """Terms with an index map pushed down to the arguments, each computed once."""

    def __init__(self, deep: int | None = None):
        self.known: dict[tuple[Term, int, BlockMap | Merge], Scaled | None] = {}
        self.deep, self.depth = deep, 0

    def __call__(self, x: Scaled, d: int, index: BlockMap | Merge) -> Any:
        """Return a term with the map applied to dimension `d`; None if a merge is not possible."""
        coef, t = x
        shape = index.shape(t.shape, d)
        if shape == t.shape:
            return x
        if not coef:
            return T.zero(shape)
        key = t, d, index
        if key not in self.known:
            self.depth += 1
            try:
                self.known[key] = self._pushed(t, d, index, shape)
            finally:
                self.depth -= 1
        result = self.known[key]
        return None if result is None else T.times(coef, result)

    def element(self, x: Scaled, d: int, i: int) -> Scaled:
        """Return element `i` along dimension `d`, which is removed."""
        return self(x, d, BlockMap(i, 1, drops=True))

    def _pushed(self, t: Term, d: int, index: BlockMap | Merge, shape: Shape) -> Scaled | None:
        sources = [index.source(row, d) for row in rows_of(t)]
        too_deep = self.deep is not None and self.depth > self.deep
        if CHANGED in sources or not t.kids or too_deep:
            return index.stop(self, t, d)
        kids, inside = [], []
        for kid, e in zip(t.kids, sources, strict=True):
            kids.append(kid if e is None else self(kid, e, index))
            inside.append(_renumbering(index, e))
        if None in kids:
            return None
        return FORMS[t.op].build(t, kids, shape, _renumbering(index, d), inside)


def _renumbering(index: BlockMap | Merge, d: int | None) -> Renumber:
    return lambda dims: tuple(dims) if d is None else index.renumbered(dims, d)
