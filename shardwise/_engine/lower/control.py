"""Control flow with collectives inside: run once for all devices, on stacked values.

`axes` are the axes of the collectives inside; every other axis has a loop around. Without axes this
is plain control flow, and a `cond` stays a real `cond`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..._mesh import Axis
from ..._program import Atom, Body, Cond, Op, Scan, Var, While
from ..._program.collectives import widen
from .context import Context, Env, read
from .deadlock import Divergence, first_of
from .value import StackedValue, is_extended, stacked

Axes = Sequence[Axis]


def control(op: Op, ins: list[StackedValue], axes: Axes, cx: Context) -> list[StackedValue]:
    """Return the results of a `Scan`, `While` or `Cond`."""
    match op:
        case Scan():
            return _scan(op, ins, axes, cx)
        case While():
            return _while(op, ins, axes, cx)
        case Cond():
            return _cond(op, ins, axes, cx)
    raise AssertionError(f"{type(op).__name__} is not control flow")


def _scan(op: Scan, ins: list[StackedValue], axes: Axes, cx: Context) -> list[StackedValue]:
    second = op.consts + op.carry
    consts, init, xs = ins[: op.consts], ins[op.consts : second], ins[second:]
    carried = op.outs[: op.carry]
    placements = [_along(value.dims, axes) for value in xs]
    watched = cx.watch.concerns(op.body.ops)
    inner = dataclasses.replace(cx, pace=cx.pace.within(max(1, op.length)))
    grown = _pairs(op.body.outs[: op.carry], op.body.ins[op.consts : second])

    def step(state: Any, inputs: Any) -> tuple[Any, dict[int, StackedValue]]:
        carry, totals, divergence = state
        number, arrays = inputs
        slices = [stacked(a, placement) for a, placement in zip(arrays, placements, strict=True)]
        ins = [*consts, *_unpack(carry, carried, axes), *slices]
        outs, new = _run(op.body, ins, axes, inner, grown)
        divergence = first_of([divergence, new]) if watched else None
        rows = dict(enumerate(outs[op.carry :]))
        totals = {k: _add_row(total, rows.pop(k), number) for k, total in totals.items()}
        return (_pack(outs[: op.carry], carried, axes), totals, divergence), rows

    stacks = op.outs[op.carry :]
    totals = {k: cx.adding[var] for k, var in enumerate(stacks) if op.length and var in cx.adding}
    start = (_pack(init, carried, axes), totals, cx.watch.no_divergence() if watched else None)
    timed = [
        jnp.moveaxis(value.spread(placement), len(placement), 0)
        for value, placement in zip(xs, placements, strict=True)
    ]
    numbers = jnp.arange(op.length, dtype=jnp.int32) if totals else None
    (carry, totals, divergence), ys = lax.scan(
        step, start, (numbers, timed), length=op.length, reverse=op.reverse, unroll=op.unroll
    )
    _record(cx, divergence)
    results = {k: StackedValue(total) for k, total in totals.items()}
    for k, y in ys.items():
        results[k] = StackedValue(y.array, {axis: d + 1 for axis, d in y.dims.items()})
    return [*_unpack(carry, carried, axes), *(results[k] for k in range(len(stacks)))]


def _add_row(total: Any, row: StackedValue, number: Any) -> Any:
    """Add to a row of a total; XLA does it in place."""
    current = lax.dynamic_index_in_dim(total, number, keepdims=False)
    return lax.dynamic_update_index_in_dim(total, current + widen(row.array), number, 0)


def _while(op: While, ins: list[StackedValue], axes: Axes, cx: Context) -> list[StackedValue]:
    first, second = op.cond_consts, op.cond_consts + op.body_consts
    cond_consts, body_consts, init = ins[:first], ins[first:second], ins[second:]
    (test,) = op.cond.outs
    batched = isinstance(test, Var) and test.shape != ()
    watched = cx.watch.concerns([op])
    inner = dataclasses.replace(cx, pace=cx.pace.within(SEVERAL))

    def decide(carry: list[Any]) -> tuple[Any, StackedValue, Divergence | None]:
        state = _unpack(carry, op.outs, axes)
        (decision,), divergence = _run(op.cond, [*cond_consts, *state], axes, inner)
        go = _any(decision) if batched else decision
        return go.first(), decision, _divergence(op, go, divergence, cx) if watched else None

    def body(state: Any) -> Any:
        _, decision, carry, old = state
        outs, nested = _run(op.body, [*body_consts, *_unpack(carry, op.outs, axes)], axes, inner)
        later = _pack(outs, op.outs, axes)
        if batched:
            rows = zip(later, carry, op.outs, strict=True)
            later = [_where(decision, new, old, axes, var) for new, old, var in rows]
        go, decision, divergence = decide(later)
        if divergence is None:
            return go, decision if batched else None, later, None
        divergence = first_of([old, nested, divergence])
        # On a real mesh the loop would hang here.
        return go & (divergence.site == 0), decision if batched else None, later, divergence

    carry = _pack(init, op.outs, axes)
    go, decision, divergence = decide(carry)
    if divergence is not None:
        go = go & (divergence.site == 0)
    _, _, carry, divergence = lax.while_loop(
        lambda state: state[0], body, (go, decision if batched else None, carry, divergence)
    )
    _record(cx, divergence)
    return _unpack(carry, op.outs, axes)


SEVERAL = 8
"""The assumed number of iterations of a loop whose length is unknown."""


def _any(decision: StackedValue) -> StackedValue:
    """Under `vmap` a loop continues while any of its elements does."""
    along = list(decision.dims)
    array = decision.spread(along)
    return stacked(array.any(axis=tuple(range(len(along), array.ndim))), along)


def _where(decision: StackedValue, new: Any, old: Any, axes: Axes, var: Var) -> Any:
    """Under `vmap` an element that is done keeps its value."""
    along = _along(var.axes, axes)
    active = decision.spread(along)
    return jnp.where(active.reshape(active.shape + (1,) * (new.ndim - active.ndim)), new, old)


def _cond(op: Cond, ins: list[StackedValue], axes: Axes, cx: Context) -> list[StackedValue]:
    index, *operands = ins
    watched = cx.watch.concerns([op])

    def branch(body: Body) -> Any:
        def take(operands: list[StackedValue]) -> tuple[list[Any], Divergence | None]:
            outs, divergence = _run(body, operands, axes, cx)
            return _pack(outs, op.outs, axes), divergence if watched else None

        return take

    choice = index.first()
    outs, divergence = lax.switch(choice, [branch(body) for body in op.branches], operands)
    _record(cx, _divergence(op, index, divergence, cx))
    return _unpack(outs, op.outs, axes)


# --- parts of all three


def _run(
    body: Body,
    ins: list[StackedValue],
    axes: Axes,
    cx: Context,
    grown: dict[Var, Var] | None = None,
) -> tuple[list[StackedValue], Divergence]:
    """Run a nested list in a separate trace; its divergence is returned as a value."""
    inner = dataclasses.replace(cx.fresh(), grown=grown or {})
    env: Env = dict(zip(body.ins, ins, strict=True))
    keep = [atom for atom in body.outs if isinstance(atom, Var)]
    cx.run(body.ops, axes, env, keep, inner)
    return [read(env, atom) for atom in body.outs], inner.divergence()


def _divergence(
    op: Op, decision: StackedValue, inside: Divergence | None, cx: Context
) -> Divergence | None:
    """Return the divergence inside, or that of the decision here."""
    if not decision.dims or id(op) not in cx.watch.number:
        return inside
    divergence = cx.watch.compare(op, decision, cx.coords)
    return divergence if inside is None else first_of([divergence, inside])


def _pairs(outs: Sequence[Atom], ins: Sequence[Var]) -> dict[Var, Var]:
    """Map the outputs of an iteration to the carried values."""
    return {out: var for out, var in zip(outs, ins, strict=True) if isinstance(out, Var)}


def _record(cx: Context, divergence: Divergence | None) -> None:
    if divergence is not None:
        cx.divergences.append(divergence)


def _along(varying: Any, axes: Axes) -> list[Axis]:
    return [axis for axis in axes if axis in varying]


def _pack(values: Sequence[StackedValue], like: Sequence[Var], axes: Axes) -> list[Any]:
    """Return arrays of fixed shape and type: the axes of `like` in front, in the order of
    `axes`."""
    return [
        _strong(value.spread(_along(var.axes, axes)), var)
        for value, var in zip(values, like, strict=True)
    ]


def _unpack(arrays: Sequence[Any], like: Sequence[Var], axes: Axes) -> list[StackedValue]:
    return [stacked(array, _along(var.axes, axes)) for array, var in zip(arrays, like, strict=True)]


def _strong(array: Any, var: Var) -> Any:
    return array if is_extended(var.dtype) else lax.convert_element_type(array, var.dtype)
