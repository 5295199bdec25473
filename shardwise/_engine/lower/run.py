"""Run a list of operations for all coordinates of some axes.

    pick the axis with the fewest stages of communication
    split the list into stages at the collectives along it
    in each stage: run once what is the same for all coordinates,
                   loop over the rest (each iteration is this procedure for the other axes),
                   run the collectives

With no axis left, an operation is one call of JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp

from ... import _jax
from ..._jax.shapes import reshaped
from ..._mesh import Axis
from ..._program import Atom, AxisIndex, Body, Collective, Join, Leaf, Op, Split, Var
from ..._program import collectives as _collectives
from . import repeat, without_loop
from .block_sums import sum_block
from .context import Context, Env, read
from .control import control
from .deadlock import Divergence, DivergenceWatch
from .equation_runs import CopiedRun, split_runs
from .loop import ShardLoop
from .machine import on_host
from .passes import rewritten
from .plan import BlockSum, Stage, concerned, count_uses, folds, is_grown, outermost, stages
from .recompute import move_between_stages
from .shards_at_once import Pace, has_equal_columns, is_choosing
from .switches import is_on
from .value import StackedValue, join, split, stacked


def execute(
    body: Body, args: Sequence[Any], watch: DivergenceWatch, pace: Pace
) -> tuple[list[Any], Divergence | None]:
    """Return the results of a program, and its divergence if it can have any."""
    outs, divergence = observe(body, args, watch, pace, body.outs)
    return [out.first() for out in outs], divergence


def observe(
    body: Body, args: Sequence[Any], watch: DivergenceWatch, pace: Pace, atoms: Sequence[Atom]
) -> tuple[list[StackedValue], Divergence | None]:
    """Return any values of a program on all devices."""
    if on_host() and has_equal_columns(body.ops):
        pace = dataclasses.replace(
            pace, single="XLA computes wrong sums of products with equal columns"
        )
    repeats = is_on("share_repeats") and not is_choosing()
    cx = Context(run, watch, pace, repeats={} if repeats else None)
    env: Env = {var: StackedValue(arg) for var, arg in zip(body.ins, args, strict=True)}
    axes = dict.fromkeys(axis for op in body.ops for axis in sorted(op.needs | op.meets))
    keep = [atom for atom in atoms if isinstance(atom, Var)]
    run(rewritten(body.ops, keep, watch), list(axes), env, keep, cx)
    return [read(env, atom) for atom in atoms], cx.divergence() if watch.sites else None


def run(
    ops: Sequence[Op], axes: Sequence[Axis], env: Env, keep: Sequence[Var], cx: Context
) -> None:
    """Run `ops`; afterwards `env` has the values in `keep`."""
    axes = concerned(ops, axes)
    if not axes:
        for part in split_runs(ops, keep) if not cx.batched and is_on("copy_equations") else [ops]:
            if isinstance(part, CopiedRun):
                part.write(env)
                continue
            for op in part:
                _write(op, _evaluate(op, [read(env, atom) for atom in op.ins], (), cx), env)
        return
    axis = outermost(ops, axes)
    rest = [inner_axis for inner_axis in axes if inner_axis != axis]
    all_stages = stages(ops, axis)
    if is_on("recompute") and not cx.watch.concerns(ops):
        move_between_stages(all_stages, axis, ops, keep)
    uses = count_uses([op for stage in all_stages for op in stage.ops], keep)
    row: list[Stage] = []
    for stage in all_stages:
        is_flat = (
            is_on("without_loop") and not cx.batched and without_loop.is_flat(stage, uses, axes)
        )
        if stage.outside or not is_flat:
            _run_without_loop(row, axes, uses, cx, env)
            row = []
        run(stage.outside, rest, env, _escaping(stage.outside, uses), cx)
        if is_flat:
            row.append(stage)
            continue
        inner_ops = list(stage.inside)
        folded = folds(stage, axis, inner_ops, uses)
        if inner_ops:
            escaping = _escaping(stage.inside, _less(uses, [fold.op for fold in folded]))
            grown = {var: cx.grown[var] for var in escaping if is_grown(var, stage, uses, cx.grown)}
            repeat.loop(ShardLoop(axis, rest, inner_ops, folded, escaping, grown, env, cx))
        folded_ops = {id(fold.op) for fold in folded}
        for op in stage.meetings:
            if id(op) not in folded_ops:
                _communicate(op, axes, env, cx)
    _run_without_loop(row, axes, uses, cx, env)


def _run_without_loop(
    row: Sequence[Stage], axes: Sequence[Axis], uses: dict[Var, int], cx: Context, env: Env
) -> None:
    """Run stages without a loop, in blocks if they repeat."""
    for block in repeat.blocks(row):
        ops = [op for stage in block for op in (*stage.inside, *stage.meetings)]
        if len(block) == 1:
            inner = partial(_stage, block[0], axes, cx)
        else:
            inner = partial(_several, block, axes, uses, cx)
        repeat.flat(ops, axes, _escaping(ops, uses), env, cx, inner)


def _several(
    block: Sequence[Stage], axes: Sequence[Axis], uses: dict[Var, int], cx: Context, env: Env
) -> None:
    for stage in block:
        _run_without_loop([stage], axes, uses, cx, env)


def _stage(stage: Stage, axes: Sequence[Axis], cx: Context, env: Env) -> None:
    without_loop.run(stage, env)
    for op in stage.meetings:
        _communicate(op, axes, env, cx)


def _communicate(op: Op, axes: Sequence[Axis], env: Env, cx: Context) -> None:
    """Run an operation in which devices communicate, on stacked values."""
    if op.bodies:
        loop_axes = [axis for axis in axes if axis in op.needs and axis not in op.meets]
        if loop_axes:
            run([op], axes, env, op.outs, cx)
            return
        axes = [axis for axis in axes if axis in op.meets]
    _write(op, _evaluate(op, [read(env, atom) for atom in op.ins], axes, cx), env)


def _evaluate(
    op: Op, ins: list[StackedValue], axes: Sequence[Axis], cx: Context
) -> list[StackedValue]:
    with _jax.same_place(op.source):
        match op:
            case Leaf():
                return [StackedValue(out) for out in op.run(*(value.array for value in ins))]
            case AxisIndex(axis=axis):
                if axis in cx.coords:
                    return [StackedValue(jnp.asarray(cx.coords[axis], jnp.int32))]
                return [stacked(jnp.arange(axis.size, dtype=jnp.int32), [axis])]
            case Split():
                part = split(jnp.asarray(ins[0].array), op.placement)
                for axis in op.axes:
                    if axis in cx.coords:
                        part = part.at(axis, cx.coords[axis])
                return [part]
            case Join():
                return [join(ins[0], op.placement)]
            case Collective():
                return [_apply_collective(op, ins)]
            case BlockSum():
                return [StackedValue(sum_block(op, [x.array for x in ins], cx.summing.get(op)))]
            case _:
                return control(op, ins, axes, cx)


def _apply_collective(op: Collective, ins: Sequence[StackedValue]) -> StackedValue:
    """Apply a collective to the stacked values of all devices."""
    rule = _collectives.RULES[op.name]
    count = 1
    for axis in op.axes:
        count *= axis.size
    ins = [
        x if isinstance(x.array, jax.Array) else StackedValue(jnp.asarray(x.array), x.dims)
        for x in ins
    ]
    if rule.same and all(axis.size == 1 for axis in op.scope):
        # On a single device XLA removes it.
        return reduce(lambda x, axis: x.at(axis, 0), op.axes, ins[0])
    if rule.same and op.groups is None and not any(axis in ins[0].dims for axis in op.axes):
        return StackedValue(rule.same(ins[0].array, count), ins[0].dims)
    other_axes = list(dict.fromkeys(axis for x in ins for axis in x.dims if axis not in op.axes))
    leading = tuple(axis.size for axis in other_axes)

    def stack(x: StackedValue) -> Any:
        array = x.spread([*other_axes, *op.axes])
        return reshaped(array, (*leading, count, *array.shape[len(leading) + len(op.axes) :]))

    def apply(*stacks: Any) -> Any:
        return _collectives.apply(op.name, op.groups, *stacks, **op.params)

    for _ in other_axes:
        apply = jax.vmap(apply)
    out = apply(*map(stack, ins))
    if rule.agrees and op.groups is None:
        return stacked(out, other_axes)
    sizes = [axis.size for axis in op.axes]
    out = reshaped(out, (*leading, *sizes, *out.shape[len(leading) + 1 :]))
    return stacked(out, [*other_axes, *op.axes])


def _write(op: Op, outs: Sequence[StackedValue], env: Env) -> None:
    env.update(zip(op.outs, outs, strict=True))


def _escaping(ops: Sequence[Op], uses: dict[Var, int]) -> list[Var]:
    """Return the values computed by `ops` that are used outside."""
    uses_inside = count_uses(ops, ())
    return [v for op in ops for v in op.outs if uses.get(v, 0) > uses_inside.get(v, 0)]


def _less(uses: dict[Var, int], ops: Sequence[Op]) -> dict[Var, int]:
    """Return the uses that remain without those of `ops`."""
    remaining = dict(uses)
    for op in ops:
        for atom in op.ins:
            if isinstance(atom, Var):
                remaining[atom] -= 1
    return remaining
