"""Move sums over devices that a loop only accumulates to after the loop.

Autodiff computes the gradient of a value that every iteration uses, such as the weights of a
recurrent network, in this way: it sums over the devices in every iteration, and adds the result to
a total that the loop carries.

    total = total + psum(x)   becomes   share = share + x,   after the loop   total + psum(share)

Otherwise the operands of the collective would have to be stored for all iterations. The sum is
computed in another order, which affects the last digits; more than those for a low-precision dtype,
if the total starts with a large number, or if sums are infinite. So the pass applies only to code
that autodiff generates: totals that start with zero, of `float32` and wider.
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
from .deadlock import DivergenceWatch
from .plan import block_sum, count_uses, is_zero, joint_of, sums_in_blocks


def sum_after_loops(ops: Sequence[Op], watch: DivergenceWatch) -> list[Op]:
    """Move such sums after the loops of a list, and after the loops in them."""
    producers = {var: op for op in ops for var in op.outs}

    def news(op: Op) -> list[Op]:
        return _loop(op, producers, watch) if isinstance(op, Scan) else [op]

    return [new for op in ops for new in news(op)]


def _loop(op: Scan, producers: dict[Var, Op], watch: DivergenceWatch) -> list[Op]:
    if not op.meets or op.effectful or watch.concerns([op]):
        return [op]
    body = Body(op.body.ins, sum_after_loops(op.body.ops, watch), op.body.outs)
    op = dataclasses.replace(op, body=body)
    starts = op.ins[op.consts : op.consts + op.carry]
    sums = [
        added
        for added in added_up(op)
        if _is_wide_sum(added.collective)
        and added.collective.backward
        and is_zero(starts[added.place], producers)
    ]
    return _move_sums(op, sums) or [op]


def _is_wide_sum(op: Collective) -> bool:
    """Return whether it is a sum over devices whose order only affects the last digits."""
    operand = op.ins[0]  # some collectives have several
    if op.name != "psum" or op.groups is not None or not isinstance(operand, Var):
        return False
    return np.issubdtype(operand.dtype, np.inexact) and operand.dtype.itemsize > 2


def _move_sums(op: Scan, sums: Sequence[AddedUp]) -> list[Op] | None:
    """Return the loop that accumulates the share of each device, and the sums after it; None if
    impossible."""
    if not sums:
        return None
    body = Body([*op.body.ins], [*op.body.ops], [*op.body.outs])
    loop = dataclasses.replace(op, ins=[*op.ins], outs=[*op.outs], body=body)
    starts: list[Op] = []
    for added in sums:
        _add_up(loop, added, starts)
    old_axes = [var.axes for var in op.outs]
    annotate_loop(loop)
    sums_after = [new for added in sums for new in _sum_after(op, loop, added)]
    unchanged = old_axes == [var.axes for var in op.outs]
    for var, axes in zip(op.outs, old_axes, strict=True):
        var.axes = axes
    return [*starts, loop, *sums_after] if unchanged else None


def _add_up(loop: Scan, each: AddedUp, before: list[Op]) -> None:
    """Let a loop carry the sum of each device, starting from zero, instead of the total."""
    body, index = loop.body, each.place
    (operand,) = each.collective.ins
    assert isinstance(operand, Var)
    removed = {id(each.add), id(each.collective), *map(id, each.between)}
    if len(each.collective.axes) == 1 and sums_in_blocks("psum", operand.dtype):
        (axis,) = each.collective.axes
        producers = {var: op for op in body.ops for var in op.outs}
        outs = [atom for atom in body.outs if isinstance(atom, Var)]
        joint = joint_of(operand, producers, count_uses(body.ops, outs), axis)
        inner_sum = block_sum(each.collective, operand, joint)
        removed |= {id(op) for op in joint.ops} if joint else set()
        body.ops.append(inner_sum)
        (operand,) = inner_sum.outs
    start, share, total, end = (twin(operand) for _ in range(4))
    start.axes = frozenset()
    zero = Lit(np.zeros((), operand.dtype))
    params = {"shape": operand.shape, "broadcast_dimensions": (), "sharding": None}
    run = _jax.applying(lax.broadcast_in_dim_p, params, ())
    origin = {"scope": each.add.scope, "source": each.add.source, "calls": each.add.calls}
    before.append(Leaf([zero], [start], "broadcast_in_dim", run, params, **origin))
    add = dataclasses.replace(each.add, ins=[share, operand], outs=[total], needs=operand.axes)
    body.ops[:] = [*(op for op in body.ops if id(op) not in removed), add]
    body.ins[loop.consts + index], body.outs[index] = share, total
    loop.ins[loop.consts + index], loop.outs[index] = start, end


def _sum_after(op: Scan, loop: Scan, each: AddedUp) -> list[Op]:
    """Return the sum over devices of their shares, and the operations that followed it."""
    value, out = loop.outs[each.place], []
    axes = frozenset(each.collective.axes)
    for step in (each.collective, *each.between):
        result = Var(step.outs[0].shape, step.outs[0].dtype)
        result.axes = value.axes - axes
        new = dataclasses.replace(step, ins=[value], outs=[result])
        new.needs, new.meets = value.axes, value.axes & axes
        out.append(new)
        value = result
    start, total = op.ins[op.consts + each.place], op.outs[each.place]
    add = dataclasses.replace(each.add, ins=[start, value], outs=[total])
    total.axes = add.needs = start.axes | value.axes
    return [*out, add]
