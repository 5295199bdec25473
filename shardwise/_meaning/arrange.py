"""Rules for operations that only move elements: a cut moves with its dimension.

Some operations need every device to have the dimension whole (a slice out of the middle, a
concatenation). Then the axis of a cut along it becomes hidden: each device applies the operation to
its own part, and the term describes that.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._mesh import Axis
from .._program import Leaf
from . import term as T
from .algebra import MOVES
from .align import align_but, reshaped
from .bits import rounded
from .blocks import padded
from .collectives import dealt
from .elementwise import refuse_debts, settle
from .evaluate import numbers
from .indexing import BlockMap, Push
from .notes import Notes
from .rules import rule, shifted
from .term import Shape
from .value import (
    Unknown,
    Value,
    axes_in,
    hidden_sizes,
    hide,
    local_size,
    part_of,
    read_as,
    thickened,
    thinned,
    tidy_dim,
    uncut,
    whole,
    whole_along,
    whole_shape,
    with_dim,
    with_hidden,
)


@rule("transpose", needs=MOVES)
def transposes(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Permute dimensions; each keeps its cut."""
    (v,) = ins
    order = op.params["permutation"]
    lead = len(v.hidden)
    result = T.transpose(v.scaled, (*range(lead), *shifted(order, lead)))
    return [v.having(result, dims=tuple(v.dims[d] for d in order))]


@rule("reshape", needs=MOVES)
def reshapes(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Map the segments of cut dimensions to the new dimensions."""
    v = ins[0]
    if op.params.get("dimensions") is not None:
        raise Unknown("a reshape that also transposes")
    local = tuple(op.outs[0].shape)
    out = reshaped(v, local, w.known, w.shapes_of(v.term))
    w.reshapes.setdefault(v.term, set()).add(out.shape)
    return [out]


@rule("squeeze", needs=MOVES)
def squeezes(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Drop dimensions of size 1; a cut along one becomes hidden."""
    (v,) = ins
    return [thinned(v, [d % len(v.dims) for d in op.params["dimensions"]])]


@rule("broadcast_in_dim", needs=MOVES)
def broadcasts(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Add dimensions that every device has whole; the others keep their cuts."""
    v = ins[0]
    local, places = op.params["shape"], op.params["broadcast_dimensions"]
    expanded = [i for i, d in enumerate(places) if local_size(v.dims[i]) != local[d]]
    v = whole_along(v, expanded)
    dims = [uncut(size) for size in local]
    for i, d in enumerate(places):
        if i not in expanded:
            dims[d] = v.dims[i]
    shape = whole_shape(dims, v.hidden)
    lead = len(v.hidden)
    result = T.bcast(v.scaled, shape, (*range(lead), *shifted(places, lead)))
    return [v.having(result, dims=tuple(dims))]


@rule("iota", needs=MOVES)
def iotas(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Return the index along a dimension of the local array."""
    shape = tuple(op.outs[0].shape)
    return [rounded(whole(T.iota(shape, op.params["dimension"])), op.outs[0].dtype)]


@rule("rev", needs=MOVES)
def reverses(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Reverse dimensions that every device has whole."""
    (v,) = ins
    along = op.params["dimensions"]
    v = whole_along(v, along)
    lead = len(v.hidden)
    if {d + lead for d in along} <= T.uniform_dims(v.term):
        return [v]
    return [v.having(T.linear("rev", shifted(along, lead), v.scaled, v.term.shape))]


@rule("slice", needs=MOVES)
def slices(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Slice some dimensions, which every device needs whole; the others keep their cuts."""
    (v,) = ins
    start, limit = op.params["start_indices"], op.params["limit_indices"]
    stride = op.params["strides"] or (1,) * len(start)
    cut = [
        d
        for d, size in enumerate(v.local)
        if (start[d], limit[d], stride[d]) != (0, size, 1) and size
    ]
    v = whole_along(v, cut)
    for d in cut:
        part = part_of(v, d, start[d], op.outs[0].shape[d], stride[d])
        place = d + len(v.hidden)
        if stride[d] == 1 and padded(v.term, place):
            # What was computed from padded arrays is computed from the unpadded ones instead.
            block = BlockMap(start[d], op.outs[0].shape[d])
            part = part.having(Push()(v.scaled, place, block))
        v = part
    return [v]


@rule("split", needs=MOVES)
def splits(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Split along a dimension that every device has whole."""
    (v,) = ins
    sizes = op.params["sizes"]
    starts = itertools.accumulate(sizes, initial=0)
    return [part_of(v, op.params["axis"], *place) for place in zip(starts, sizes, strict=False)]


@rule("pad", needs=MOVES)
def pads(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Pad dimensions that every device has whole; a share may only be padded with zeros."""
    v, filler = ins
    config = op.params["padding_config"]
    along = [d for d, entry in enumerate(config) if tuple(entry) != (0, 0, 0)]
    if not along:
        return [v]
    refuse_debts("padding with a share", [filler])
    if v.owed and filler.coef:
        raise Unknown("a share of a sum is padded with something else than zeros", v.debts)
    v = whole_along(v, along)
    if filler.coef:
        hidden = sorted({*v.hidden, *filler.hidden})
        v, filler = with_hidden(v, hidden), with_hidden(filler, hidden)
    dims = list(v.dims)
    for d in along:
        dims[d] = uncut(op.outs[0].shape[d])
    lead = len(v.hidden)

    def cuts(number: Callable[[int], int]) -> tuple:
        return tuple((number(d + lead), *config[d]) for d in along)

    shape, busy = whole_shape(dims, v.hidden), shifted(along, lead)
    if filler.coef:
        busy, also = (*range(lead), *busy), [filler.scaled]
        result = T.beside("pad", busy, [v.scaled], shape, cuts, also=also)
    else:
        result = T.beside("pad", busy, [(1, v.term)], shape, cuts, v.coef)
    return [v.having(result, dims=tuple(dims))]


@rule("concatenate", needs=MOVES)
def concatenations(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Concatenate along a dimension that every device has whole."""
    d = op.params["dimension"]
    ins, born = settle(w, op, ins)
    ins = align_but(ins, [d], w.known)
    dims = with_dim(ins[0].dims, d, uncut(op.outs[0].shape[d]))
    shape = whole_shape(dims, ins[0].hidden)
    result = T.concatenate([v.scaled for v in ins], d + len(ins[0].hidden), shape)
    return [ins[0].having(result, dims=dims, born=born)]


@rule("stack", needs=MOVES)
def stacks(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Stack along a new dimension; the others keep their cuts."""
    d = op.params["axis"]
    concatenate = dataclasses.replace(op, name="concatenate", params={"dimension": d})
    return concatenations(w, concatenate, [thickened(v, d) for v in ins])


@rule("unstack", needs=MOVES)
def unstacks(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Split a dimension that every device has whole into its elements."""
    d = op.params["axis"]
    return [thinned(part_of(ins[0], d, i, 1), [d]) for i in range(len(op.outs))]


# --- at a computed index


@rule("dynamic_slice", needs=MOVES, positions=(1, None))
def dynamic_slices(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Slice at a computed index; at `axis_index * size` it is the device's own part."""
    v, *starts = ins
    refuse_debts("a slice at a share", starts)
    sizes = op.params["slice_sizes"]
    along = [d for d in range(len(sizes)) if sizes[d] != v.local[d]]
    if len(along) == 1:
        part = _own_part(v, starts[along[0]], along[0], sizes[along[0]])
        if part is not None:
            return [part]
    v = whole_along(v, along)
    indices = [numbers(starts[d].scaled) for d in along if not starts[d].hidden]
    if len(indices) == len(along) and all(index is not None for index in indices):
        for d, index in zip(along, indices, strict=True):
            v = part_of(v, d, _clamped(index, v.local[d] - sizes[d]), sizes[d])
        return [v]
    return [_at(op, v, [starts[d] for d in along], along, sizes)]


def _clamped(index: Any, last: int) -> int:
    """Return a known index as XLA clamps it to an array."""
    return min(max(int(index), 0), last)


def _own_part(v: Value, start: Value, d: int, size: int) -> Value | None:
    """Return a replicated or split value, cut further over the axes that `start` differs over."""
    if (
        len(v.dims[d]) != 1
        or set(start.hidden) & (v.axes | v.debts)
        or start.axes != set(start.hidden)
    ):
        return None
    order = blocks(start, size, local_size(v.dims[d]))
    if order is None:
        return None
    return dealt(v, d, order)


def blocks(start: Value, size: int, whole_length: int) -> tuple[Axis, ...] | None:
    """Return the axes, major first, whose coordinates number blocks of `size` from `start` on."""
    count = math.prod(hidden_sizes(start.hidden))
    if count * size != whole_length or count == 1:
        return None
    positions = numbers(start.scaled)
    if positions is None:
        return None
    grid = np.broadcast_to(positions, hidden_sizes(start.hidden))
    for order in itertools.permutations(range(len(start.hidden))):
        rank = np.arange(count).reshape([start.hidden[d].size for d in order])
        if (np.transpose(grid, order) == rank * size).all():
            return tuple(start.hidden[d] for d in order)
    return None


def _at(op: Leaf, v: Value, starts: list[Value], along: list[int], sizes: Shape) -> Value:
    axes = sorted({axis for operand in (v, *starts) for axis in operand.hidden})
    if v.debts & frozenset(axes):
        raise Unknown("a slice whose place differs over the axis that is still owed", v.debts)
    clash = axes_in(v.dims) & frozenset(axes)
    for axis in sorted(clash):
        v = hide(v, axis)
    v, *starts = [with_hidden(operand, axes) for operand in (v, *starts)]
    dims = list(v.dims)
    for d in along:
        dims[d] = uncut(sizes[d])
    shape = whole_shape(dims, axes)
    lead, places = len(axes), [start.scaled for start in starts]

    def params(number: Callable[[int], int]) -> tuple:
        return tuple((number(d + lead), sizes[d]) for d in along), lead

    busy = [*range(lead), *shifted(along, lead)]
    result = T.beside("dynamic_slice", busy, [(1, v.term)], shape, params, v.coef, places)
    return v.having(result, dims=tuple(dims))


@rule("dynamic_update_slice", needs=MOVES, positions=(2, None))
def dynamic_updates(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Update at a computed index; a device's part, put into zeros at its place, is a share."""
    v, update, *starts = ins
    refuse_debts("an update at a share", starts)
    along = [d for d in range(len(v.dims)) if update.local[d] != v.local[d]]
    if not along:
        return [update]  # clamped, it replaces the whole array
    if len(along) == 1 and v.zero:
        share = _own_place(op, v, update, starts[along[0]], along[0])
        if share is not None:
            return [share]
    (v, update), born = settle(w, op, [v, update])
    v, update = align_but([v, update], along, w.known)
    axes = sorted({axis for operand in (v, update, *starts) for axis in operand.hidden})
    if (v.debts | axes_in(v.dims)) & frozenset(axes):
        raise Unknown("an update whose place differs over an axis that is owed or cut", v.debts)
    v, update, *starts = [
        with_hidden(operand, axes) for operand in (v, update, *[starts[d] for d in along])
    ]
    if not v.coef and not update.coef:
        return [v]
    if len(along) == 1 and (index := numbers(starts[0].scaled)) is not None and _alike(index):
        result = _put_in(v, update, along[0], index.reshape(-1)[0])
        return [v.having(result, born=born)]
    lead = update.coef or v.coef
    kids = [(T.over(v.coef, lead), v.term), (T.over(update.coef, lead), update.term)]
    places = [start.scaled for start in starts]

    def params(number: Callable[[int], int]) -> tuple:
        return tuple(number(d + len(axes)) for d in along), len(axes)

    busy = [*range(len(axes)), *shifted(along, len(axes))]
    result = T.beside("update", busy, kids, v.term.shape, params, lead, places)
    return [v.having(result, born=born)]


def _alike(known: np.ndarray) -> bool:
    return bool((known == known.reshape(-1)[0]).all())


def _put_in(v: Value, update: Value, d: int, index: Any) -> T.Scaled:
    """Update at a known index."""
    size, length, dim = v.local[d], update.local[d], d + len(v.hidden)
    start = _clamped(index, size - length)
    before, after = (0, start), (start + length, size - start - length)
    first, last = ([T.cut(v.scaled, dim, *part)] if part[1] else [] for part in (before, after))
    return T.concatenate([*first, update.scaled, *last], dim, v.term.shape)


def _own_place(op: Leaf, v: Value, update: Value, start: Value, d: int) -> Value | None:
    """Return zeros with each device's part at its own place: a share of the whole."""
    axes = frozenset(start.hidden)
    if axes_in([v.dims[d]]) or axes & update.debts or start.axes != axes or not axes:
        return None
    order = blocks(start, local_size(update.dims[d]), local_size(v.dims[d]))
    if order is None:
        return None
    want = tidy_dim([(local_size(v.dims[d]), order)])
    update = with_hidden(update, order)
    out = read_as(update, with_dim(update.dims, d, want))
    dims = with_dim(out.dims, d, uncut(local_size(v.dims[d])))
    owed = out.owed | {(axis, "sum") for axis in order}
    return out.having(out.scaled, dims=dims, owed=owed, born=op)
