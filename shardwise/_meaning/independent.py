"""Loops with independent steps: gradient accumulation, `lax.map`.

Such a loop only adds to what it carries, so its steps could run on as many devices at once. They
are read as one more axis, along which the stacked inputs are cut. What the body owes over that axis
is what the loop adds up. So the sum over microbatches of the sum over rows is the sum over all
rows, and accumulating on every device is the same as on one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from .._mesh import Axis
from .._program import Atom, Body, Leaf, Lit, Scan, Var, shape_of
from .._program.primitives import ADDITIONS
from . import term as T
from .align import reshaped
from .bits import rounded
from .notes import Loop, Notes
from .rules import RULES
from .signature import users
from .value import (
    Unknown,
    Value,
    hidden_sizes,
    hide,
    narrowed,
    owing,
    thinned,
    tidy_dim,
    uncut,
    whole,
    whole_along,
)


@dataclasses.dataclass(frozen=True)
class Added:
    """A carried value to which every step adds something, and the operation that adds."""

    op: Leaf
    what: Atom


@dataclasses.dataclass(frozen=True)
class Counted:
    """A carried number that every step increases by a constant."""

    by: int
    dtype: Any


Carried = Added | Counted | None
"""How a step changes a carried value; None if it does not."""


def all_at_once(w: Notes, loop: Loop) -> list[Value] | None:
    """Return the results of a loop with independent steps, or None if they may not be."""
    op = loop.op
    changes = carried(op)
    if changes is None or op.length < 1:
        return None
    steps = Axis(f"the steps of loop {w.depth}", op.length)
    trial = w.anew()
    try:
        parts = [_dealt(trial, x, steps) for x in loop.xs]
        starts = [_given(v, change, steps) for v, change in zip(loop.carry, changes, strict=True)]
        body, outs = _adding(op, changes)
        values = trial.run(body, [*loop.consts, *starts, *parts])
        if trial.mistakes:  # a non-linear operation on a step's own rows
            return None
        added = [_total(v, steps) for v in values[:outs]]
        stacked = [_stacked(v, steps) for v in values[outs:]]
        results = _ends(trial, changes, loop.carry, added, op)
    except Unknown:
        return None
    w.take_over(trial, steps)
    return [*results, *stacked]


def carried(op: Scan) -> list[Carried] | None:
    """Return how a step changes each carried value, or None if one has another use."""
    body = op.body
    carries = body.ins[op.consts : op.consts + op.carry]
    makers = {out: inner for inner in body.ops for out in inner.outs}
    uses = users(body.ops, body.outs)
    changes: list[Carried] = []
    for var, out in zip(carries, body.outs, strict=False):
        if out is var:
            changes.append(None)
            continue
        maker = makers.get(out) if isinstance(out, Var) else None
        if not isinstance(maker, Leaf) or maker.name not in ADDITIONS or var not in maker.ins:
            return None
        addend = maker.ins[1] if maker.ins[0] is var else maker.ins[0]
        increment = _number(addend)
        once = len(uses[var]) == len(uses[maker.outs[0]]) == 1
        if increment is not None and not op.reverse and not var.shape:
            changes.append(Counted(increment, var.dtype))
        elif once and shape_of(addend) == tuple(var.shape):
            changes.append(Added(maker, addend))
        else:
            return None
    return changes


def _number(atom: Atom) -> int | None:
    """Return the value of a literal that is a real integer, else None."""
    if not isinstance(atom, Lit) or np.shape(atom.value):
        return None
    value = complex(atom.value)
    return int(value.real) if not value.imag and value.real.is_integer() else None


def _adding(op: Scan, changes: list[Carried]) -> tuple[Body, int]:
    """Return the body that returns the addends instead of the sums, and their number."""
    removed = {id(change.op) for change in changes if isinstance(change, Added)}
    ops = [inner for inner in op.body.ops if id(inner) not in removed]
    added = [change.what for change in changes if isinstance(change, Added)]
    return Body(op.body.ins, ops, [*added, *op.body.outs[op.carry :]]), len(added)


def _given(v: Value, how: Carried, steps: Axis) -> Value:
    """Return a carried value as a step reads it; steps that add to it do not read it."""
    if not isinstance(how, Counted):
        return v
    if v.axes or v.owed:
        raise Unknown("a counter that differs between devices")
    # With the number after the last step, which the loop returns.
    if rounded(whole(_counts(v, how, steps.size + 1)), how.dtype).term.op == "held":
        raise Unknown(f"a counter of dtype {how.dtype} that is rounded")
    return Value(*_counts(v, how, steps.size), (), (steps,))


def _counts(v: Value, how: Counted, count: int) -> T.Scaled:
    grid = T.iota((count,), 0)
    start = T.bcast(v.scaled, (count,), ())
    return T.add([(T.tidy(grid[0] * how.by), grid[1]), start], (count,))


def dropped(w: Notes, x: Value) -> Value:
    """Remove the first dimension, of which a step has one element.

    The cut along it moves to another dimension if the reference has the resulting term: rows of
    microbatches are rows. Otherwise its axes become hidden.
    """
    options = [*_merged(w, x)]
    for rows in options:
        if w.known(rows.term) if w.reference is not None else w.has(rows.term):
            return rows
    if options and w.reference is None:
        return options[0]
    return thinned(x, [0])


def _merged(w: Notes, x: Value) -> Iterator[Value]:
    """Yield the ways to merge the first dimension into another one."""
    for place in range(max(1, len(x.dims) - 1)):
        with contextlib.suppress(Unknown):
            moved = _moved(x, place)
            yield reshaped(moved, x.local[1:], w.known, w.shapes_of(moved.term))


def _moved(x: Value, place: int) -> Value:
    """Move the first dimension to another position."""
    lead = len(x.hidden)
    order = [*range(1, place + 1), 0, *range(place + 1, len(x.dims))]
    moved = T.transpose(x.scaled, [*range(lead), *(lead + d for d in order)])
    return x.having(moved, dims=tuple(x.dims[d] for d in order))


def _dealt(w: Notes, x: Value, steps: Axis) -> Value:
    """Return a stacked input cut along the axis of steps: each has its own element."""
    x = narrowed(x, 0)
    if len(x.hidden) in T.uniform_dims(x.term):
        return x.having((x.coef, T.strip(x.term, {len(x.hidden)})), dims=x.dims[1:])
    long = [i for i, (size, axes) in enumerate(x.dims[0]) if size != math.prod(hidden_sizes(axes))]
    if len(long) > 1:
        x = whole_along(x, [0])
        long = [0]
    dim = [
        (size, (*axes, steps) if i in long else axes) for i, (size, axes) in enumerate(x.dims[0])
    ]
    x = x.having(x.scaled, dims=(tidy_dim(dim), *x.dims[1:]))
    return dropped(w, x)


def _total(v: Value, steps: Axis) -> Value:
    """Return the sum over all steps."""
    v = owing(v, steps)
    return v.having(v.scaled, owed=v.owed - {(steps, "sum")}, born=v.born if v.owed else None)


def _stacked(v: Value, steps: Axis) -> Value:
    """Stack the results of the steps."""
    v = hide(v, steps)
    at, lead = v.hidden.index(steps), len(v.hidden)
    order = [*(d for d in range(lead) if d != at), at, *range(lead, len(v.term.shape))]
    hidden = tuple(axis for axis in v.hidden if axis != steps)
    dims = (uncut(steps.size), *v.dims)
    return v.having(T.transpose(v.scaled, order), hidden=hidden, dims=dims)


def _ends(
    w: Notes, changes: list[Carried], carry: list[Value], added: list[Value], op: Scan
) -> list[Value]:
    """Return the final carry of the loop."""
    rest, results = iter(added), []
    for change, start in zip(changes, carry, strict=True):
        if change is None:
            results.append(start)
        elif isinstance(change, Counted):
            results.append(whole(T.add([start.scaled, (change.by * op.length, T.ONE)], ())))
        else:
            results += RULES["add"](w, change.op, [start, next(rest)])
    return results
