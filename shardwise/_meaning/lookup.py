"""Rules for gather and scatter: lookups by index, and their transposes.

Rows looked up by cut indices are cut; features of the table keep their cut. A table cut along the
dimension of the lookup is read as one table per device. Adding rows by cut indices leaves a sum
owed, as any sum over a cut dimension does.

`x[jnp.arange(n), y]` picks one element of each row: along a dimension that is indexed by its own
positions nothing is looked up, since row i is taken for row i. Such a lookup, or addition, is read
as one over a batch of rows, as `jnp.take_along_axis` is traced.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._mesh import Axis
from .._program import Leaf
from . import term as T
from .algebra import ANY, MOVES, RING
from .contract import meet
from .elementwise import debts_of, only_sums, refuse_debts, share_words, sums
from .evaluate import numbers as evaluated
from .indexing import BlockMap, Push
from .leaves import made_leaf
from .masked import added_up
from .notes import Notes
from .rules import rule, shifted
from .value import (
    Dim,
    Unknown,
    Value,
    axes_in,
    hidden_sizes,
    hide,
    local_size,
    read_as,
    thickened,
    tidy_dim,
    uncut,
    whole_along,
    whole_shape,
    whole_size,
    with_dim,
    with_hidden,
)

NAMES = {
    "gather": ("start_index_map", "collapsed_slice_dims", "start_indices_batching_dims"),
    "scatter": (
        "scatter_dims_to_operand_dims",
        "inserted_window_dims",
        "scatter_indices_batching_dims",
    ),
}
"""The fields of the dimension numbers for the indexed dimensions, the dropped dimensions, and the
batch dimensions of the index.
"""


def _by_rows(op: Leaf, x: Value, index: Value) -> tuple[Any, Value]:
    """Return dimension numbers and an index without the columns that are positions of rows."""
    numbers, last = op.params["dimension_numbers"], len(index.dims) - 1
    looked_up, dropped, batched = NAMES["gather" if op.name == "gather" else "scatter"]
    dims = getattr(numbers, looked_up)
    if len(dims) < 2:
        return numbers, index
    place, push = last + len(index.hidden), Push()
    columns = [push(index.scaled, place, BlockMap(i, 1)) for i in range(len(dims))]
    matched: dict[int, int] = {}
    rest: list[tuple[int, T.Scaled]] = []
    for dim, column in zip(dims, columns, strict=True):
        taken = {*getattr(numbers, batched), *matched.values()}
        rows = [
            row
            for row in range(last)
            if index.local[row] == x.local[dim] and row not in taken and _counts(index, column, row)
        ]
        if rows and dim in getattr(numbers, dropped):
            matched[dim] = rows[0]
        else:
            rest.append((dim, column))
    if not matched or not rest:
        return numbers, index
    pairs = dict(zip(numbers.operand_batching_dims, getattr(numbers, batched), strict=True))
    pairs |= matched
    changed = {
        looked_up: tuple(dim for dim, _ in rest),
        dropped: tuple(d for d in getattr(numbers, dropped) if d not in matched),
        "operand_batching_dims": tuple(sorted(pairs)),
        batched: tuple(pairs[dim] for dim in sorted(pairs)),
    }
    shape = (*index.term.shape[:-1], len(rest))
    columns = T.concatenate([column for _, column in rest], place, shape)
    index = index.having(columns, dims=with_dim(index.dims, last, uncut(len(rest))))
    return numbers._replace(**changed), index


def _counts(index: Value, column: T.Scaled, row: int) -> bool:
    """Return whether a column of an index counts the rows of each device from 0."""
    place, (coef, t) = len(index.hidden) + row, column
    others = {*range(len(t.shape))} - {place}
    if not coef:
        return index.local[row] == 1
    if len(index.dims[row]) > 1:
        return False
    uniform = others & T.uniform_dims(t)
    positions = evaluated((coef, T.strip(t, uniform)))
    expected = np.arange(t.shape[place]) % index.local[row]
    after = sum(dim > place for dim in others - uniform)
    expected = expected.reshape(-1, *[1] * after)
    return positions is not None and bool((positions == expected).all())


@rule("gather", needs=MOVES, positions=(1, 2))
def gathers(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Look up rows; cut indices give cut rows, cut features stay cut, shares stay shares."""
    x, index = ins
    sizes = op.params["slice_sizes"]
    refuse_debts("a lookup by a share", [index])
    index = whole_along(index, [len(index.dims) - 1])
    numbers, index = _by_rows(op, x, index)
    batch_x, batch_i = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    x, index = meet(w, x, index, [*zip(batch_x, batch_i, strict=True)])
    addressed = {*numbers.start_index_map, *batch_x}
    full = [d for d in range(len(x.dims)) if d not in addressed and sizes[d] == x.local[d]]
    x = whole_along(x, [d for d in range(len(x.dims)) if d not in full and d not in batch_x])
    paired = axes_in(x.dims[d] for d in batch_x)
    unpaired = (x.axes - paired) & index.axes
    for d in full:
        if _one_each(x, d) and axes_in([x.dims[d]]) <= unpaired:
            kept = [
                e for e in range(len(x.dims)) if e not in {*numbers.collapsed_slice_dims, *batch_x}
            ]
            changed, new_dim = _batched(numbers, d, numbers.offset_dims[kept.index(d)])
            params = {**op.params, "dimension_numbers": changed}
            split = _cut_here(thickened(index, new_dim), new_dim, x.dims[d])
            return gathers(w, dataclasses.replace(op, params=params), [x, split])
    for axis in sorted(unpaired | (paired & {*x.hidden, *index.hidden})):
        x, index = hide(x, axis), hide(index, axis)
    if x.debts & index.axes:
        raise Unknown(
            f"a lookup in {share_words(x.debts)} by an index that differs over it", x.debts
        )
    hidden = sorted({*x.hidden, *index.hidden})
    x, index = with_hidden(x, hidden), with_hidden(index, hidden)
    gone = {*numbers.collapsed_slice_dims, *batch_x}
    windows = iter(
        [x.dims[d] if d in full else uncut(sizes[d]) for d in range(len(x.dims)) if d not in gone]
    )
    rows = iter(index.dims[:-1])
    rank = len(op.outs[0].shape)
    dims = tuple(next(windows) if d in numbers.offset_dims else next(rows) for d in range(rank))
    shape = whole_shape(dims, hidden)
    mode, fill = str(op.params["mode"]), op.params.get("fill_value")
    fills = _fills(mode, fill)
    if fills and any(kind == "sum" for _, kind in x.owed):
        raise Unknown("a share is looked up, with a number in the place of what is not there")
    if not x.coef and not fills:
        return [x.having(T.zero(shape), dims=dims, hidden=tuple(hidden))]
    wide = tuple(whole_size(x.dims[d]) if d in full else sizes[d] for d in range(len(x.dims)))
    # The fill value for missing rows is not scaled with the table.
    coef, (times, table) = (1, x.scaled) if fills else (x.coef, (1, x.term))
    lead = len(hidden)
    kept = [d for d in range(len(x.dims)) if d not in gone]
    pairs = {d: numbers.offset_dims[kept.index(d)] for d in full if d in kept}
    alike = [d for d in pairs if d + lead in T.uniform_dims(table)]
    params = (
        _without(numbers, alike, [pairs[d] for d in alike]),
        tuple(size for d, size in enumerate(wide) if d not in alike),
        (mode, str(fill)),
        lead,
    )
    keep = [d for d in range(len(shape)) if d - lead not in {pairs[e] for e in alike}]
    kids = ((times, T.strip(table, {*shifted(alike, lead)})), index.scaled)
    term = T.make("gather", params, kids, tuple(shape[d] for d in keep))
    return [x.having(T.bcast((coef, term), shape, keep), dims=dims, hidden=tuple(hidden))]


def _one_each(v: Value, d: int) -> bool:
    """Return whether a dimension is cut so that each device has one element of it."""
    return local_size(v.dims[d]) == 1 and bool(axes_in([v.dims[d]]))


def _cut_here(v: Value, at: int, dim: Dim) -> Value:
    """Return a value with dimension `at` cut as `dim`, and no other cut by the same axes."""
    axes = axes_in([dim])
    rest = [tidy_dim(_without_axes(segment, axes) for segment in segments) for segments in v.dims]
    return read_as(v, (*rest[:at], dim, *rest[at + 1 :]))


def _without_axes(segment: tuple[int, tuple[Axis, ...]], axes: frozenset[Axis]) -> Any:
    size, segment_axes = segment
    divisor = math.prod(axis.size for axis in segment_axes if axis in axes)
    return size // divisor, tuple(axis for axis in segment_axes if axis not in axes)


def _batched(numbers: Any, d: int, place: int) -> tuple[Any, int]:
    """Return dimension numbers that batch dimension `d` with a new dimension of the index.

    `place` is its position in the rows that are looked up or added. Also return the position of the
    new dimension of the index, chosen so that nothing has to be transposed.
    """
    looked_up = hasattr(numbers, "offset_dims")
    windows, batched = (
        ("offset_dims", "start_indices_batching_dims")
        if looked_up
        else ("update_window_dims", "scatter_indices_batching_dims")
    )
    window_dims = getattr(numbers, windows)
    new_dim = sum(1 for e in range(place) if e not in window_dims)
    pairs = dict(zip(numbers.operand_batching_dims, getattr(numbers, batched), strict=True))
    pairs = {e: i + (i >= new_dim) for e, i in pairs.items()} | {d: new_dim}
    changed = {
        windows: tuple(e for e in window_dims if e != place),
        "operand_batching_dims": tuple(sorted(pairs)),
        batched: tuple(pairs[e] for e in sorted(pairs)),
    }
    return numbers._replace(**changed), new_dim


OF_RESULT = ("offset_dims", "update_window_dims")
OF_INDEX = ("start_indices_batching_dims", "scatter_indices_batching_dims", "mode")


def _without(numbers: Any, gone: Sequence[int], also: Sequence[int]) -> Any:
    """Return dimension numbers without some dimensions of the array and of its rows.

    Along these dimensions the operands are uniform and each row has them whole, so the result is
    uniform along them too.
    """

    def left(name: str, dims: Any) -> Any:
        if name in OF_INDEX:
            return dims
        out = also if name in OF_RESULT else gone
        return tuple(d - sum(e < d for e in out) for d in dims if d not in out)

    return numbers._replace(**{key: left(key, old) for key, old in numbers._asdict().items()})


def _fills(mode: str, fill: Any) -> bool:
    """Return whether a lookup outside of the array gives a number other than zero.

    None is NaN, or the smallest signed or the largest unsigned integer.
    """
    return "FILL" in mode and (fill is None or bool(fill))


@rule("scatter-add", needs=RING, positions=(1, 2))
def additions(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Add rows by index; over cut rows a sum is owed."""
    x, index, update = ins
    refuse_debts("an addition at a share", [index])
    added = _scattered(w, op, x, index, update, adds=True)
    if x.zero:
        return [added]
    return sums(w, made_leaf(op, "add", op.ins[:1], op.outs[0]), [x, added])


@rule(
    "scatter",
    "scatter-mul",
    "scatter-min",
    "scatter-max",
    needs=ANY,
    positions=(1, 2),
)
def replacements(w: Notes, op: Leaf, ins: list[Value]) -> list[Value]:
    """Update rows by index, along dimensions that every device has whole."""
    x, index, update = ins
    if debts_of(ins):  # may be correct if x is zeros, but no rule decides it
        raise Unknown(f"there is no rule for {op.name} of each device's own share")
    return [_scattered(w, op, x, index, update, adds=False)]


def _scattered(w: Notes, op: Leaf, x: Value, index: Value, update: Value, adds: bool) -> Value:
    index = whole_along(index, [len(index.dims) - 1])
    numbers, index = _by_rows(op, x, index)
    window = numbers.update_window_dims
    batch_x, batch_i = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
    rows = [d for d in range(len(update.dims)) if d not in window]
    index, update = meet(w, index, update, [(i, d) for i, d in enumerate(rows)])
    kept = [
        d for d in range(len(x.dims)) if d not in numbers.inserted_window_dims and d not in batch_x
    ]
    of_window = dict(zip(kept, window, strict=True))
    full = {
        d: of_window[d]
        for d in kept
        if d not in numbers.scatter_dims_to_operand_dims
        and update.local[of_window[d]] == x.local[d]
    }
    for d, e in full.items() if adds and index.axes else ():
        if update.local[e] != 1:
            continue
        axes = tuple(sorted(index.axes))
        dim = update.dims[e] or tidy_dim([(math.prod(hidden_sizes(axes)), axes)])
        changed, new_dim = _batched(numbers, d, e)
        batched = dataclasses.replace(op, params={**op.params, "dimension_numbers": changed})
        try:
            places = _cut_here(thickened(index, new_dim), new_dim, dim)
            scattered = _scattered(w, batched, x, places, _cut_here(update, e, dim), adds)
        except Unknown:
            continue
        # Either each device has one row, or all add to the same row; the reference decides.
        if w.known(scattered.term):
            return scattered
    update = whole_along(update, [d for d in window if d not in full.values()])
    batch_rows = [rows[i] for i in batch_i]
    free_rows = [d for d in rows if d not in batch_rows]
    if not adds:
        update, index = (
            whole_along(update, free_rows),
            whole_along(index, [rows.index(d) for d in free_rows]),
        )
    over = axes_in(update.dims[d] for d in free_rows)
    clash = over & axes_in(update.dims[d] for d in range(len(update.dims)) if d not in free_rows)
    clash |= (axes_in(update.dims) | axes_in(index.dims)) & {*update.hidden, *index.hidden}
    clash |= axes_in(update.dims[d] for d in window) & axes_in(index.dims)
    for axis in sorted(clash):
        update, index = hide(update, axis), hide(index, axis)
    over = axes_in(update.dims[d] for d in free_rows)
    dims = [uncut(size) for size in x.local]
    for d, e in full.items():
        dims[d] = update.dims[e]
    for d, i in zip(batch_x, batch_i, strict=True):
        dims[d] = update.dims[rows[i]]
    if adds:
        only_sums(op.name, update)
    if update.debts & (over | index.axes):
        raise Unknown(
            f"rows of {share_words(update.debts)} added at places that differ", update.debts
        )
    axes = {*update.hidden, *index.hidden}
    if not adds:
        x = read_as(x, tuple(dims))
        axes |= {*x.hidden}
        if axes & axes_in(dims):
            raise Unknown("rows replaced where parts and places differ over one axis")
        x = with_hidden(x, sorted(axes))
    hidden = sorted(axes)
    update, index = with_hidden(update, hidden), with_hidden(index, hidden)
    shape = whole_shape(dims, hidden)
    lead = len(hidden)
    alike = [d for d, e in full.items() if lead + e in T.uniform_dims(update.term)]
    if not adds:
        alike = [d for d in alike if lead + d in T.uniform_dims(x.term)]
    update_dims = [full[d] for d in alike]
    params = (op.name, _without(numbers, alike, update_dims), str(op.params["mode"]), lead)
    keep = [d for d in range(len(shape)) if d - lead not in alike]
    small = tuple(shape[d] for d in keep)
    rows_of = T.strip(update.term, {*shifted(update_dims, lead)})
    if not adds:
        table = x.coef, T.strip(x.term, {*shifted(alike, lead)})
        kids = [table, index.scaled, (update.coef, rows_of)]
        return x.having(T.bcast(T.function("scatter", params, kids, small), shape, keep))
    owed = update.owed | {(axis, "sum") for axis in over}
    born = op if over else update.born
    masked = _by_mask(x, index, update, numbers, dims)
    if masked is not None:
        return masked.having(masked.scaled, owed=owed, born=born)
    scattered = T.make("scatter_add", params, (index.scaled, (1, rows_of)), small)
    scaled = T.bcast((update.coef, scattered), shape, keep) if update.coef else T.zero(shape)
    return Value(*scaled, tuple(dims), tuple(hidden), owed, born)


def _by_mask(x: Value, index: Value, update: Value, numbers: Any, dims: list[Any]) -> Value | None:
    """Return rows added to a table whose rows are split, where each device masks out the others."""
    if len(numbers.scatter_dims_to_operand_dims) != 1 or not update.coef:
        return None
    d = numbers.scatter_dims_to_operand_dims[0]
    size = x.local[d]
    match = added_up(index.scaled, update, numbers, size)
    if match is None:
        return None
    where, rows, places = match
    whole_dims = list(dims)
    whole_dims[d] = tidy_dim([(size * math.prod(a.size for a in update.hidden), update.hidden)])
    shape = tuple(map(whole_size, whole_dims))
    term = T.make("add_rows", (numbers, places), ((1, where), (1, rows[1])), shape)
    return Value(rows[0], term, tuple(whole_dims))
