"""Plan the order of axes, the stages and the folds, without any arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

import numpy as np

from ..._mesh import Axis
from ..._program import Atom, Body, Collective, Leaf, Lit, Op, Scan, Var, primitives
from ..._program.collectives import foldable, is_order_sensitive, wide, widen
from .switches import is_on


@dataclasses.dataclass
class Stage:
    """The operations between two exchanges of the devices along an axis."""

    outside: list[Op] = dataclasses.field(default_factory=list)
    """Operations with the same result for every coordinate: run once."""
    inside: list[Op] = dataclasses.field(default_factory=list)
    """Operations that differ between coordinates: run in one loop over them."""
    meetings: list[Op] = dataclasses.field(default_factory=list)
    """Operations in which the coordinates communicate: run after the loop."""

    @property
    def ops(self) -> list[Op]:
        """Return all operations, in order."""
        return [*self.outside, *self.inside, *self.meetings]


def stages(ops: Sequence[Op], axis: Axis) -> list[Stage]:
    """Split a list where the devices along `axis` communicate."""
    out: list[Stage] = []
    level: dict[Var, int] = {}
    for op in ops:
        depth = max((level.get(atom, 0) for atom in op.ins if isinstance(atom, Var)), default=0)
        while len(out) <= depth:
            out.append(Stage())
        meets = axis in op.meets
        stage = out[depth]
        (stage.meetings if meets else stage.inside if axis in op.needs else stage.outside).append(
            op
        )
        for var in op.outs:
            level[var] = depth + meets
    return out


def concerned(ops: Sequence[Op], axes: Iterable[Axis]) -> list[Axis]:
    """Return the axes that an operation differs over or communicates along."""
    return [axis for axis in axes if any(axis in op.needs or axis in op.meets for op in ops)]


def outermost(ops: Sequence[Op], axes: Sequence[Axis]) -> Axis:
    """Return the axis to loop over first: the one along which devices communicate least often.

    Its loop contains the loops of the others, so that a training step split over data and model
    keeps the activations of one data shard, not of all.
    """
    if len(axes) == 1:
        return axes[0]
    return min(axes, key=lambda axis: sum(bool(stage.meetings) for stage in stages(ops, axis)))


@dataclasses.dataclass
class Fold:
    """A reduction whose operand is computed in a loop: accumulated there, never stacked."""

    op: Collective
    operand: Var
    name: str
    within: BlockSum | None = None
    """The sum, inside the loop, over the devices that are computed at once."""
    by_rows: bool = False
    """Whether an inner loop computes the operand row by row, so that each row can be added at
    once."""


@dataclasses.dataclass
class Joint:
    """Operations that compute a summand, if one operation can compute the sum over all devices.

    The sum of products `x @ y` is one product over more terms. `ops` are such an operation and then
    those that a sum passes through; nothing else reads their results.
    """

    ops: list[Leaf]

    @property
    def ins(self) -> list[Atom]:
        """Return the inputs, each once."""
        outputs = {var for op in self.ops for var in op.outs}
        return list(dict.fromkeys(a for op in self.ops for a in op.ins if a not in outputs))


@dataclasses.dataclass(eq=False)
class BlockSum(Op):
    """In a loop over devices: the sum over those devices that are computed at once.

    The collective after the loop sums over the blocks. `joint` computes the operand, if one
    operation can do so for all devices of a block. Without a block, this only computes the operand.
    """

    joint: Joint | None


def folds(stage: Stage, axis: Axis, inner: list[Op], uses: dict[Var, int]) -> list[Fold]:
    """Return the collectives that a loop can fold; add to `inner` what they need inside it."""
    producers = {var: op for op in stage.inside for var in op.outs}
    all_producers = {var: op for op in stage.outside for var in op.outs} | producers
    result = []
    replaced: set[int] = set()
    for op in stage.meetings:
        if not isinstance(op, Collective) or op.groups is not None or op.ins[0] not in producers:
            continue
        operand = op.ins[0]
        assert isinstance(operand, Var)
        scatters = op.name == "psum_scatter" and op.axes == (axis,)
        name = "psum" if scatters else op.name
        if name not in primitives.REDUCTIONS or not foldable(name, operand.dtype):
            continue
        rest = tuple(op_axis for op_axis in op.axes if op_axis != axis)
        if is_order_sensitive(name, operand.dtype) and rest:
            continue
        inner_sum, producer, by_rows = None, producers[operand], False
        if rest or not sums_in_blocks(name, operand.dtype):
            pass
        elif _is_carried(producer, operand):
            inner_sum = _in_loop(operand, producer)
        elif _is_stacked_output(producer, operand, uses):
            by_rows = producer.needs == {axis} and not producer.meets
            inner_sum = _in_loop(operand, producer)
            if inner_sum is None and by_rows:
                inner_sum, loop = _into_loop(op, operand, producer, axis)
                inner[:] = [loop if inner_op is producer else inner_op for inner_op in inner]
                producers.update(dict.fromkeys(loop.outs, loop))
                all_producers |= producers
        if rest:
            operand = _reduce_rest(op, operand, rest, inner)
        if inner_sum is None and sums_in_blocks(name, operand.dtype):
            joint = None if rest else joint_of(operand, all_producers, uses, axis)
            inner_sum = block_sum(op, operand, joint)
            (operand,) = inner_sum.outs
            replaced |= {id(op) for op in joint.ops} if joint else set()
            inner.append(inner_sum)
        result.append(Fold(op, operand, name, inner_sum, by_rows))
    if replaced:
        inner[:] = [op for op in inner if id(op) not in replaced]
    return result


def is_grown(var: Var, stage: Stage, uses: dict[Var, int], carried: dict[Var, Var]) -> bool:
    """Return whether a value is a carried value plus something, and nothing else reads either.

    Then it can overwrite the carried value.
    """
    old = carried.get(var)
    if old is None or uses.get(old) != 1 or uses.get(var) != 1:
        return False
    return any(
        var in op.outs
        and old in op.ins
        and isinstance(op, Leaf)
        and op.name in primitives.ADDITIONS
        for op in stage.inside
    )


def sums_in_blocks(name: str, dtype: Any) -> bool:
    """Return whether devices that are computed at once may be summed in any order."""
    return name == "psum" and not is_order_sensitive(name, dtype) and dtype != np.bool_


def _is_stacked_output(producer: Op, operand: Var, uses: dict[Var, int]) -> TypeGuard[Scan]:
    """Return whether a value is a stacked output of a loop, with a single use."""
    if not isinstance(producer, Scan) or uses.get(operand) != 1:
        return False
    index = producer.outs.index(operand)
    return index >= producer.carry and isinstance(producer.body.outs[index], Var)


def _is_carried(producer: Op, operand: Var) -> TypeGuard[Scan]:
    """Return whether a value is carried by a loop: `sum_after_loops` has it add up block sums."""
    return isinstance(producer, Scan) and producer.outs.index(operand) < producer.carry


def _in_loop(operand: Var, producer: Scan) -> BlockSum | None:
    """Return the block sum in a loop that computes the operand of a fold, or its increments."""
    index = producer.outs.index(operand)
    targets = {producer.body.outs[index]}
    if index < producer.carry:
        carried = producer.body.ins[producer.consts + index]
        adds = (op for op in producer.body.ops if targets.issuperset(op.outs) and carried in op.ins)
        targets = {atom for op in adds for atom in op.ins}
    sums = (
        op for op in producer.body.ops if isinstance(op, BlockSum) and targets.issuperset(op.outs)
    )
    return next(sums, None)


def _into_loop(op: Collective, operand: Var, producer: Scan, axis: Axis) -> tuple[BlockSum, Scan]:
    """Return a new block sum in a loop that computes the operand of a fold, and the new loop."""
    ops, outs, index = producer.body.ops, [*producer.body.outs], producer.outs.index(operand)
    row = outs[index]
    assert isinstance(row, Var)
    uses = count_uses(ops, [atom for atom in outs if isinstance(atom, Var)])
    joint = joint_of(row, {var: inner_op for inner_op in ops for var in inner_op.outs}, uses, axis)
    inner_sum = block_sum(op, row, joint)
    (outs[index],) = inner_sum.outs
    removed = {id(inner_op) for inner_op in joint.ops} if joint else set()
    ops = [*(inner_op for inner_op in ops if id(inner_op) not in removed), inner_sum]
    return inner_sum, dataclasses.replace(producer, body=Body(producer.body.ins, ops, outs))


def block_sum(op: Collective, operand: Var, joint: Joint | None) -> BlockSum:
    """Return the part of a sum over devices that covers those computed at once."""
    out = Var(operand.shape, operand.dtype)
    out.axes = operand.axes
    ins: list[Atom] = joint.ins if joint else [operand]
    result = BlockSum(ins, [out], joint, scope=op.scope, source=op.source, calls=op.calls)
    result.needs = operand.axes
    return result


def _reduce_rest(op: Collective, operand: Var, rest: tuple[Axis, ...], inner: list[Op]) -> Var:
    """Return the part of a reduction over several axes inside the loop over one of them."""
    if wide(operand.dtype) != operand.dtype:
        operand = _widened(op, operand, inner)
    out = Var(operand.shape, operand.dtype)
    out.axes = operand.axes - set(rest)
    part = Collective([operand], [out], op.name, rest, op.params, scope=op.scope)
    part.source, part.calls = op.source, op.calls
    part.needs, part.meets = operand.axes, operand.axes & set(rest)
    inner.append(part)
    return out


def _widened(op: Collective, operand: Var, inner: list[Op]) -> Var:
    """Convert the operand to the dtype of the reduction: a partial reduction is not rounded."""
    out = Var(operand.shape, wide(operand.dtype))
    out.axes = operand.axes
    cast = Leaf([operand], [out], "convert_element_type", lambda x: [widen(x)], scope=op.scope)
    cast.source, cast.calls, cast.needs = op.source, op.calls, operand.axes
    inner.append(cast)
    return out


PASSED = primitives.names(lambda p: p.moves == "reorder" and p.acts == "moves") | {"neg"}
"""Operations that commute with a sum over devices.

Additions are excluded: of two sums each may be infinite although their difference is not.
Conversions too: each device rounds its own product, and XLA would round the product of all.
"""


def joint_of(var: Var, producers: dict[Var, Op], uses: dict[Var, int], axis: Axis) -> Joint | None:
    """Return how a value is computed, if one operation can compute its sum over `axis`."""
    if not is_on("joint_products"):
        return None
    ops: list[Leaf] = []
    atom: Atom = var
    while True:
        op = producers.get(atom) if isinstance(atom, Var) and uses.get(atom) == 1 else None
        if not isinstance(op, Leaf):
            return None
        ops.append(op)
        if _is_joined(op, producers, axis):
            return Joint(ops[::-1])
        if op.name not in PASSED:
            return None
        (atom,) = op.ins


def _is_joined(op: Leaf, producers: dict[Var, Op], axis: Axis) -> bool:
    """Return whether one operation for all devices can replace it: they differ along this axis
    only."""
    match op.name:
        case "dot_general":
            return all(atom.axes == {axis} for atom in op.ins)
        case "conv_general_dilated":
            summed = op.params["feature_group_count"] == 1  # over all features of all devices
            return summed and all(atom.axes == {axis} for atom in op.ins)
        case "scatter-add":
            operand, *rest = op.ins
            dims = op.params["dimension_numbers"].scatter_dims_to_operand_dims
            fits = dims and all(atom.axes <= {axis} for atom in rest)
            return bool(fits) and is_zero(operand, producers)
    return False


def is_zero(atom: Atom, producers: dict[Var, Op]) -> bool:
    """Return whether a value is known to be zero everywhere."""
    if isinstance(atom, Lit):
        return not np.any(atom.value)
    op = producers.get(atom)
    if not isinstance(op, Leaf) or op.name != "broadcast_in_dim":
        return False
    return isinstance(op.ins[0], Lit) and is_zero(op.ins[0], producers)


def count_uses(ops: Sequence[Op], keep: Iterable[Var]) -> dict[Var, int]:
    """Count how often each value is read."""
    uses: dict[Var, int] = {}
    for op in ops:
        for atom in op.ins:
            if isinstance(atom, Var):
                uses[atom] = uses.get(atom, 0) + 1
    for var in keep:
        uses[var] = uses.get(var, 0) + 1
    return uses


def reads(ops: Sequence[Op]) -> list[Var]:
    """Return the values that a list reads and does not compute, each once."""
    computed = {var for op in ops for var in op.outs}
    inputs: dict[Var, None] = {}
    for op in ops:
        for atom in op.ins:
            if isinstance(atom, Var) and atom not in computed:
                inputs[atom] = None
    return list(inputs)
