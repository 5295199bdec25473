"""Operands in one reading, so that an operation on parts is an operation on the whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from .._mesh import Axis
from . import term as T
from .term import Scaled, Shape, Term
from .value import (
    Dim,
    Dims,
    Unknown,
    Value,
    axes_in,
    hidden_sizes,
    hide,
    local_size,
    read_as,
    tidy_dim,
    uncut,
    whole_along,
    whole_shape,
    whole_size,
    with_hidden,
)

Known = Callable[[Term], bool]


def align(ins: Sequence[Value], known: Known) -> list[Value]:
    """Return the operands of an elementwise operation, cut alike, with the same hidden axes.

    Scalars, and dimensions of size 1 where other operands have larger ones, are unchanged.
    """
    if all(not v.axes for v in ins) or all(
        v.dims == ins[0].dims and v.hidden == ins[0].hidden for v in ins
    ):
        return list(ins)
    rank = max(len(v.dims) for v in ins)
    arrays = [v for v in ins if len(v.dims) == rank]
    local = tuple(_size([local_size(v.dims[d]) for v in arrays]) for d in range(rank))
    options = list(dict.fromkeys(_targets(arrays, local)))
    if len(options) == 1:
        return _hidden_alike([_read(v, options[0], local) for v in ins])
    tried = [_hidden_alike([_read(v, dims, local) for v in ins]) for dims in options]
    return max(tried, key=lambda operands: sum(known(v.term) for v in operands))


def align_but(ins: Sequence[Value], along: Sequence[int], known: Known) -> list[Value]:
    """Return operands cut alike except along some dimensions, which every device has whole."""
    ins = [whole_along(v, along) for v in ins]
    like = align([_slim(v, along) for v in ins], known)
    rows = [
        tuple(v.dims[d] if d in along else dim for d, dim in enumerate(slim.dims))
        for v, slim in zip(ins, like, strict=True)
    ]
    return [
        with_hidden(read_as(v, dims), like[0].hidden) for v, dims in zip(ins, rows, strict=True)
    ]


def _slim(v: Value, along: Sequence[int]) -> Value:
    """Return a placeholder with these dimensions of size 1, to find the cuts of the others."""
    dims = tuple(() if d in along else dim for d, dim in enumerate(v.dims))
    symbol = T.symbol("stand-in", v.term, (*along,), shape=whole_shape(dims, v.hidden))
    return v.having(symbol, dims=dims)


def _size(sizes: Sequence[int]) -> int:
    """Return the size of a dimension that is 1 in some operands; 0 if it is 0 in any."""
    return max(sizes) if all(sizes) else 0


def _largest(dims: Sequence[Dim]) -> Dim:
    """Return the cut of a dimension that has size 1 in some operands."""
    return max(dims, key=lambda dim: (not whole_size(dim), whole_size(dim)))


def _targets(arrays: Sequence[Value], local: Shape) -> Iterator[Dims]:
    """Yield the cuts to try: each operand's own, completed by those of the others."""
    for first in arrays:
        taken: set[Axis] = set()
        dims: list[Dim | None] = [None] * len(local)
        for v in (first, *arrays):
            for d, dim in enumerate(v.dims):
                axes = axes_in([dim])
                if dims[d] is None and axes and not axes & taken and local_size(dim) == local[d]:
                    dims[d] = dim
                    taken |= axes
        yield tuple(
            uncut(size) if dim is None else dim for dim, size in zip(dims, local, strict=True)
        )


def _read(v: Value, dims: Dims, local: Shape) -> Value:
    if len(v.dims) != len(dims):
        return v
    small = [local_size(dim) != size for dim, size in zip(v.dims, local, strict=True)]
    if any(dim != () and is_small for dim, is_small in zip(v.dims, small, strict=True)):
        # Where a cut dimension of local size 1 is broadcast against a larger one, each device has
        # its own element, so the axis becomes hidden.
        for axis in sorted(
            axes_in(dim for dim, is_small in zip(v.dims, small, strict=True) if is_small)
        ):
            v = hide(v, axis)
    return read_as(
        v, tuple(() if is_small else dim for is_small, dim in zip(small, dims, strict=True))
    )


def _hidden_alike(ins: list[Value]) -> list[Value]:
    hidden = tuple(sorted({axis for v in ins for axis in v.hidden}))
    cut = axes_in(dim for v in ins for dim in v.dims)
    for axis in hidden:
        if axis in cut:
            ins = [hide(v, axis) if axis in v.axes else v for v in ins]
    return [with_hidden(v, hidden) for v in ins]


def spread(ins: Sequence[Value]) -> tuple[list[Scaled], Dims, tuple[Axis, ...], Shape]:
    """Return aligned operands as terms of one shape, with the reading of the result."""
    rank = max(len(v.dims) for v in ins)
    arrays = [v for v in ins if len(v.dims) == rank]
    dims = tuple(_largest([v.dims[d] for v in arrays]) for d in range(rank))
    hidden = ins[0].hidden
    shape = whole_shape(dims, hidden)
    lead = len(hidden)
    out = []
    for v in ins:
        places = range(lead + rank) if len(v.dims) == rank else range(lead)
        out.append(T.bcast(v.scaled, shape, tuple(places)))
    return out, dims, hidden, shape


def regroup(dims: Dims, local: Shape) -> Iterator[Dims]:
    """Yield the ways to read a local reshape: how the segments of `dims` map to the new sizes.

    A segment of which every device has one element may be on either side of a boundary.
    """
    segments = [segment for dim in dims for segment in dim]
    yield from itertools.islice(_fill(segments, list(local)), 24)


def _fill(segments: list[tuple[int, tuple[Axis, ...]]], sizes: list[int]) -> Iterator[Dims]:
    if not sizes:
        if not segments:
            yield ()
        return
    for dim, rest in _take(segments, sizes[0], last=len(sizes) == 1):
        for others in _fill(rest, sizes[1:]):
            yield (tidy_dim(dim), *others)


def _take(segments, size: int, last: bool):
    """Yield the segments that can make up one new dimension, with those that remain."""
    if size == 1 and (not last or not segments):
        yield [], segments
    if not segments:
        return
    (whole, axes), *rest = segments
    n = math.prod(axis.size for axis in axes)
    part = whole // n
    if size % part == 0:
        for dim, remaining in _take(rest, size // part, last):
            yield [(whole, axes), *dim], remaining
    elif part % size == 0:
        yield [(n * size, axes)], [(part // size, ()), *rest]


def reshaped(v: Value, local: Shape, known: Known, seen: set[Shape]) -> Value:
    """Read a local reshape as a reshape of the whole.

    `seen` are the shapes to which the reference program reshapes the same term: of several true
    readings, only the one that it has can be compared.
    """
    options = list(regroup(v.dims, local))
    if not options:
        raise Unknown("a reshape that cuts across the parts of a split dimension")
    lead = hidden_sizes(v.hidden)

    def made(dims: Dims) -> Value:
        shape = (*lead, *map(whole_size, dims))
        return v.having(T.reshape(v.scaled, shape), dims=dims)

    if len(options) == 1:
        return made(options[0])
    fitting = [dims for dims in options if tuple(map(whole_size, dims)) in seen]
    if fitting:
        return made(fitting[0])
    return max(map(made, options), key=lambda out: (known(out.term), _kept(v.dims, out.dims)))


def _kept(old: Dims, new: Dims) -> int:
    """Return how many dimensions are unchanged, from the front and from the back."""
    return _alike(old, new) + _alike(old[::-1], new[::-1])


def _alike(old: Dims, new: Dims) -> int:
    pairs = zip(old, new, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
