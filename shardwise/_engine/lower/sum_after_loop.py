"""Compute sums over devices that a loop only adds up sum_after_loops, after the loop.

The gradient of what every iteration of a loop uses, such as the weights of a recurrent network, is
computed so: autodiff sums over the devices in every iteration, and adds that to a total that the
loop carries.

    total = total + psum(x)   becomes   own = own + x,   and after the loop   total + psum(own)

Otherwise the operands of the collective would have to be kept for all iterations. The sum is then
computed in another order. That affects the last digits, but more than those for a low-precision
dtype, if the total starts with a large number, or if sums are infinite. So it applies only to what
autodiff generates: totals that start with zero, of `float32` and wider.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jax import lax

from ... import _jax
from ..._program import (
    AddedUp,
    Body,
    Collective,
    Leaf,
    Lit,
    Op,
    Scan,
    Var,
    added_up,
    annotate_loop,
    twin,
)
from .deadlock import Watch
from .plan import block_sum, count_uses, is_zero, joint_of, sums_in_blocks


def sum_after_loops(ops: Sequence[Op], watch: Watch) -> list[Op]:
    """Move such sums after the loops of a list, and after the loops in them."""
    makers = {var: op for op in ops for var in op.outs}

    def news(op: Op) -> list[Op]:
        return _loop(op, makers, watch) if isinstance(op, Scan) else [op]

    return [new for op in ops for new in news(op)]


def _loop(op: Scan, makers: dict[Var, Op], watch: Watch) -> list[Op]:
    if not op.meets or op.effectful or watch.concerns([op]):
        return [op]
    body = Body(op.body.ins, sum_after_loops(op.body.ops, watch), op.body.outs)
    op = dataclasses.replace(op, body=body)
    starts = op.ins[op.consts : op.consts + op.carry]
    sums = [
        each
        for each in added_up(op)
        if _is_wide_sum(each.collective)
        and each.collective.backward
        and is_zero(starts[each.place], makers)
    ]
    return _move_sums(op, sums) or [op]


def _is_wide_sum(op: Collective) -> bool:
    """Return whether it is a sum over devices whose order only affects the last digits."""
    operand = op.ins[0]  # some collectives have several
    if op.name != "psum" or op.groups is not None or not isinstance(operand, Var):
        return False
    return np.issubdtype(operand.dtype, np.inexact) and operand.dtype.itemsize > 2


def _move_sums(op: Scan, sums: Sequence[AddedUp]) -> list[Op] | None:
    """Return the loop that adds up what each device has, and the sums after it; None if
    impossible."""
    if not sums:
        return None
    body = Body([*op.body.ins], [*op.body.ops], [*op.body.outs])
    loop = dataclasses.replace(op, ins=[*op.ins], outs=[*op.outs], body=body)
    before: list[Op] = []
    for each in sums:
        _add_up(loop, each, before)
    kept = [var.axes for var in op.outs]
    annotate_loop(loop)
    after = [new for each in sums for new in _sum_after(op, loop, each)]
    same = kept == [var.axes for var in op.outs]
    for var, axes in zip(op.outs, kept, strict=True):
        var.axes = axes
    return [*before, loop, *after] if same else None


def _add_up(loop: Scan, each: AddedUp, before: list[Op]) -> None:
    """Let a loop carry the sum of each device, starting from zero, instead of the total."""
    body, place = loop.body, each.place
    (operand,) = each.collective.ins
    assert isinstance(operand, Var)
    gone = {id(each.add), id(each.collective), *map(id, each.between)}
    if len(each.collective.axes) == 1 and sums_in_blocks("psum", operand.dtype):
        (axis,) = each.collective.axes
        makers = {var: op for op in body.ops for var in op.outs}
        outs = [atom for atom in body.outs if isinstance(atom, Var)]
        joint = joint_of(operand, makers, count_uses(body.ops, outs), axis)
        within = block_sum(each.collective, operand, joint)
        gone |= {id(op) for op in joint.ops} if joint else set()
        body.ops.append(within)
        (operand,) = within.outs
    start, own, grown, end = (twin(operand) for _ in range(4))
    start.axes = frozenset()
    zero = Lit(np.zeros((), operand.dtype))
    params = {"shape": operand.shape, "broadcast_dimensions": (), "sharding": None}
    run = _jax.applying(lax.broadcast_in_dim_p, params, ())
    where = {"scope": each.add.scope, "source": each.add.source, "calls": each.add.calls}
    before.append(Leaf([zero], [start], "broadcast_in_dim", run, params, **where))
    add = dataclasses.replace(each.add, ins=[own, operand], outs=[grown], needs=operand.axes)
    body.ops[:] = [*(op for op in body.ops if id(op) not in gone), add]
    body.ins[loop.consts + place], body.outs[place] = own, grown
    loop.ins[loop.consts + place], loop.outs[place] = start, end


def _sum_after(op: Scan, loop: Scan, each: AddedUp) -> list[Op]:
    """Return the sum over devices of what each carries, and then what followed it in the loop."""
    now, out = loop.outs[each.place], []
    over = frozenset(each.collective.axes)
    for step in (each.collective, *each.between):
        made = Var(step.outs[0].shape, step.outs[0].dtype)
        made.axes = now.axes - over
        new = dataclasses.replace(step, ins=[now], outs=[made])
        new.needs, new.meets = now.axes, now.axes & over
        out.append(new)
        now = made
    start, total = op.ins[op.consts + each.place], op.outs[each.place]
    add = dataclasses.replace(each.add, ins=[start, now], outs=[total])
    total.axes = add.needs = start.axes | now.axes
    return [*out, add]
