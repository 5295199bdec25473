"""Values: a term of the whole, and how each device's part relates to it.

Three attributes give what one device has:

    dims      for each dimension, the mesh axes it is cut along. A dimension is a list of segments,
              each `(size of the whole, axes)`: a batch of 8 by a sequence of 64 cut over `s`,
              flattened, is `((8, ()), (64, (s,)))`
    hidden    axes over which devices differ without any dimension being cut: `axis_index` is the
              whole `0, 1, ..., n-1`, of which each device has one element. The term has a
              leading dimension for each
    owed      axes over which the devices' values, their *shares*, have yet to be combined to
              give the term

One local array has many such *readings*: a replicated vector is also a cut one that repeats itself,
and a hidden axis can be placed in any dimension. All are true; `read_as` converts between them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from .._mesh import Axis, Placement
from . import term as T
from .term import Coef, Scaled, Shape, Term

Segment = tuple[int, tuple[Axis, ...]]
Dim = tuple[Segment, ...]
Dims = tuple[Dim, ...]
Owed = frozenset[tuple[Axis, str]]
NOTHING: Owed = frozenset()


class Unknown(Exception):
    """No rule gives the meaning of a value; a `debt` marks a mistake, not a gap in the rules.

    `debtor` is the value that is a share, where it is not the first one of the operation.
    """

    def __init__(
        self, reason: str, debt: frozenset[Axis] = frozenset(), debtor: Value | None = None
    ):
        super().__init__(reason)
        self.reason, self.debt, self.debtor = reason, debt, debtor


def tidy_dim(segments: Iterable[Segment]) -> Dim:
    """Return segments in normal form: those that can be merged are one."""
    out: list[Segment] = []
    for size, axes in segments:
        axes = tuple(axis for axis in axes if axis.size > 1)
        if size == 1:
            continue
        if out and not axes:
            out[-1] = (out[-1][0] * size, out[-1][1])
        elif out and out[-1][0] == math.prod(a.size for a in out[-1][1]):
            out[-1] = (out[-1][0] * size, out[-1][1] + axes)
        else:
            out.append((size, axes))
    return tuple(out)


def uncut(size: int) -> Dim:
    """Return a dimension of this size that is not cut."""
    return tidy_dim([(size, ())])


def whole_size(dim: Dim) -> int:
    """Return the size of a dimension of the whole."""
    return math.prod(size for size, _ in dim)


def local_size(dim: Dim) -> int:
    """Return the size of a device's part of a dimension."""
    return math.prod(_part(segment) for segment in dim)


def _part(segment: Segment) -> int:
    return segment[0] // math.prod(axis.size for axis in segment[1])


def axes_in(dims: Iterable[Dim]) -> frozenset[Axis]:
    """Return the axes that any dimension is cut along."""
    return frozenset(axis for dim in dims for _, axes in dim for axis in axes)


@dataclasses.dataclass(frozen=True)
class Value:
    """The meaning of a value: its relation to the whole."""

    coef: Coef
    term: Term
    dims: Dims
    hidden: tuple[Axis, ...] = ()
    owed: Owed = NOTHING
    born: Any = dataclasses.field(default=None, compare=False, repr=False)
    """The operation since which it is owed."""

    @property
    def scaled(self) -> Scaled:
        """The coefficient and the term."""
        return self.coef, self.term

    @functools.cached_property
    def shape(self) -> Shape:
        """The whole shape, without hidden dimensions."""
        return tuple(map(whole_size, self.dims))

    @functools.cached_property
    def local(self) -> Shape:
        """The shape on one device."""
        return tuple(map(local_size, self.dims))

    @functools.cached_property
    def axes(self) -> frozenset[Axis]:
        """The axes over which devices have different parts."""
        return axes_in(self.dims) | frozenset(self.hidden)

    @functools.cached_property
    def debts(self) -> frozenset[Axis]:
        """The axes over which it is owed."""
        return frozenset(axis for axis, _ in self.owed)

    @property
    def plain(self) -> bool:
        """Whether every device has the whole."""
        return not self.axes and not self.owed

    @property
    def zero(self) -> bool:
        """Whether every device has zeros; shares may add up to zero without being zero."""
        return not self.coef and not self.owed

    def having(self, scaled: Scaled, **changes: Any) -> Value:
        """Return the value with another coefficient and term."""
        return dataclasses.replace(self, coef=scaled[0], term=scaled[1], **changes)


def whole(scaled: Scaled) -> Value:
    """Return a value that every device has whole; without elements, it is always zero."""
    if 0 in scaled[1].shape:
        scaled = T.zero(scaled[1].shape)
    return Value(*scaled, tuple(uncut(size) for size in scaled[1].shape))


def hidden_sizes(axes: Iterable[Axis]) -> Shape:
    """Return the sizes of the leading dimensions for hidden axes."""
    return tuple(axis.size for axis in axes)


def whole_shape(dims: Iterable[Dim], hidden: Iterable[Axis] = ()) -> Shape:
    """Return the shape of the term of a value that is cut by `dims`."""
    return (*hidden_sizes(hidden), *map(whole_size, dims))


def with_dim(dims: Dims, d: int, dim: Dim) -> Dims:
    """Return a cut in which dimension `d` is cut as `dim`."""
    return (*dims[:d], dim, *dims[d + 1 :])


# --- conversion between readings


def hide(v: Value, axis: Axis) -> Value:
    """Read an axis as hidden: its cut, or a broadcast, becomes a leading dimension of the term."""
    if axis in v.hidden:
        return v
    if axis in v.debts:
        raise Unknown("a share of a sum is read as each device's own value", v.debts)
    hidden = tuple(sorted((*v.hidden, axis)))
    hidden_dim = hidden.index(axis)
    place = next((d for d, dim in enumerate(v.dims) if axis in axes_in([dim])), None)
    if place is None:
        shape = (*v.term.shape[:hidden_dim], axis.size, *v.term.shape[hidden_dim:])
        spots = [d for d in range(len(shape)) if d != hidden_dim]
        return v.having(T.bcast(v.scaled, shape, spots), hidden=hidden)
    lead = len(v.hidden)
    pieces, spot = _pieces(v.dims[place], axis)
    shape = (*v.term.shape[: lead + place], *pieces, *v.term.shape[lead + place + 1 :])
    out = T.reshape(v.scaled, shape)
    order = [d for d in range(len(shape)) if d != lead + place + spot]
    order.insert(hidden_dim, lead + place + spot)
    rest = tidy_dim(
        (s // axis.size, tuple(a for a in axes if a != axis)) if axis in axes else (s, axes)
        for s, axes in v.dims[place]
    )
    dims = with_dim(v.dims, place, rest)
    out = T.transpose(out, order)
    sizes = whole_shape(dims, hidden)
    return v.having(T.reshape(out, sizes), hidden=hidden, dims=dims)


def _pieces(dim: Dim, axis: Axis) -> tuple[list[int], int]:
    """Return the sizes a dimension is divided into, and the index of the axis among them."""
    pieces, spot = [], -1
    for segment in dim:
        for cut_axis in segment[1]:
            if cut_axis == axis:
                spot = len(pieces)
            pieces.append(cut_axis.size)
        pieces.append(_part(segment))
    return pieces, spot


def read_as(v: Value, dims: Dims) -> Value:
    """Read a value as cut by `dims`; hidden axes that `dims` does not contain stay hidden."""
    if v.dims == dims:
        return v
    if v.local != tuple(map(local_size, dims)):
        raise Unknown("the parts have another shape")
    wanted = axes_in(dims)
    if sum(len(axes) for dim in dims for _, axes in dim) > len(wanted):
        raise Unknown("one axis would split two dimensions")
    if wanted & v.debts:
        raise Unknown("a value that is still owed over an axis is wanted split along it")
    changed = [d for d, (dim, want) in enumerate(zip(v.dims, dims, strict=True)) if dim != want]
    moving = axes_in(v.dims[d] for d in changed) | axes_in(dims[d] for d in changed)
    for axis in sorted(moving):
        v = hide(v, axis)
    shape: list[int] = [*hidden_sizes(v.hidden)]
    order: list[int] = [d for d, axis in enumerate(v.hidden) if axis not in wanted]
    for dim, want in zip(v.dims, dims, strict=True):
        if dim == want:
            order.append(len(shape))
            shape.append(whole_size(dim))
            continue
        for segment in want:
            order += [v.hidden.index(axis) for axis in segment[1]]
            order.append(len(shape))
            shape.append(_part(segment))
    out = T.transpose(T.reshape(v.scaled, tuple(shape)), order)
    hidden = tuple(axis for axis in v.hidden if axis not in wanted)
    sizes = whole_shape(dims, hidden)
    return v.having(T.reshape(out, sizes), hidden=hidden, dims=dims)


def with_hidden(v: Value, axes: Sequence[Axis]) -> Value:
    """Read a value with all of these axes hidden."""
    for axis in axes:
        v = hide(v, axis)
    return v


def owing(v: Value, axis: Axis) -> Value:
    """Read a value as owed over an axis: the term becomes the sum over the axis."""
    if (axis, "sum") in v.owed:
        return v
    if axis in v.debts:
        raise Unknown(
            f"a maximum or minimum over {axis.name!r} that is still owed is added to", v.debts
        )
    owed = v.owed | {(axis, "sum")}
    if axis not in v.axes:
        return v.having((T.tidy(v.coef * axis.size), v.term), owed=owed)
    if any(kind != "sum" for _, kind in v.owed):
        raise Unknown("a sum over devices of a maximum or minimum that is still owed", v.debts)
    v = combined_over(v, axis, "sum")
    return v.having(v.scaled, owed=owed)


def combined_over(v: Value, axis: Axis, kind: str) -> Value:
    """Return the sum, maximum or minimum of the devices' values along an axis."""
    v = hide(v, axis)
    hidden = tuple(a for a in v.hidden if a != axis)
    return v.having(T.reduce(kind, v.scaled, [v.hidden.index(axis)]), hidden=hidden)


def whole_along(v: Value, dims: Iterable[int]) -> Value:
    """Hide the axes that cut these dimensions, so that each device has them whole."""
    return with_hidden(v, sorted(axes_in(v.dims[d] for d in dims)))


def part_of(v: Value, d: int, start: int, size: int, stride: int = 1) -> Value:
    """Return a slice along a dimension, which every device needs whole."""
    v = whole_along(v, [d])
    part = T.cut(v.scaled, d + len(v.hidden), start, size, stride)
    return v.having(part, dims=with_dim(v.dims, d, uncut(size)))


def thickened(v: Value, d: int) -> Value:
    """Return the value with a new dimension of size 1 at `d`."""
    dims = (*v.dims[:d], (), *v.dims[d:])
    return v.having(T.reshape(v.scaled, whole_shape(dims, v.hidden)), dims=dims)


def thinned(v: Value, gone: Sequence[int]) -> Value:
    """Return the value without dimensions of which every device has one element."""
    v = whole_along(v, gone)
    dims = tuple(dim for d, dim in enumerate(v.dims) if d not in gone)
    return v.having(T.reshape(v.scaled, whole_shape(dims, v.hidden)), dims=dims)


def cut_by(placement: Placement, shape: Shape) -> Dims:
    """Return the cut that a spec describes."""
    return tuple(tidy_dim([(size, axes)]) for size, axes in zip(shape, placement, strict=True))


def narrowed(v: Value, d: int) -> Value:
    """Remove the cut along a dimension that is uniform: every device has the same."""
    dim = d + len(v.hidden)
    if dim not in T.uniform_dims(v.term) or not axes_in([v.dims[d]]):
        return v
    shape = list(v.term.shape)
    shape[dim] = local_size(v.dims[d])
    inner = v.term.kids[0][1]
    result = T.bcast((v.coef, inner), tuple(shape), v.term.params)
    return v.having(result, dims=with_dim(v.dims, d, uncut(shape[dim])))
