"""Locate the operation that makes a result wrong.

The program on the failing mesh and the program on one device are the same list of operations with
other sizes, so most values have a *twin*: the same value of the program on one device. A value that
is right, or that is a share which only lacks a reduction, is not to blame, and neither is anything
before it. What remains leads from the mistake to the wrong result. If one of these values is the
same on all devices, the first such value is where the program starts to depend on the number of
devices. If all of them differ between devices, it is the first operation that turns right values
into wrong ones. Values without a twin lie between values that have one: a loop over devices has
more iterations on a mesh.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax.numpy as jnp

from ..._program import (
    Atom,
    AxisIndex,
    Body,
    Collective,
    Join,
    Leaf,
    Op,
    Scan,
    Var,
    Where,
    While,
    derivatives_of,
    walk,
)
from ..._program.collectives import RULES
from ..._program.liveness import ancestors, carried, dependents, needed
from ..._program.primitives import UNKNOWN, of
from .relate import REDUCE, Agree, Beside, Relation, relate

Known = Mapping[Var, Relation]
"""How values relate to their twins."""


def relations(body: Body, target: Var, beside: Beside, agree: Agree) -> Known:
    """Return how each value on the way to a result relates to its twin, where that is known."""
    ops = ancestors(body, target)
    operands = {target, *(atom for op in ops for atom in op.ins if isinstance(atom, Var))}
    known = {
        var: relate(beside[var].value, beside[var].alone, agree, _reductions(op, var))
        for op in ops
        for var in _felt(op, operands)
        if var in beside
    }
    # One value on one device may have several counterparts on the mesh: the last one counts.
    last = {beside[var].twin: var for var in known}
    return {
        var: relation
        for var, relation in known.items()
        if relation is not Relation.OFF or last[beside[var].twin] is var
    }


def origin(body: Body, target: Var, known: Known) -> Op | None:
    """Return the operation from which a wrong result starts to depend on the number of devices."""

    def through(*relations: Relation | None) -> list[Op]:
        return ancestors(body, target, lambda var: known.get(var) in relations)

    def is_off(op: Op) -> bool:
        return any(known.get(var) is Relation.OFF for var in op.outs)

    makers = (op for op in body.ops if not isinstance(op, Leaf))
    data = dependents(body.ops, [*body.ins, *(var for op in makers for var in op.outs)])
    blamed = through(None, Relation.OFF, Relation.UNLIKE)
    # The index of a device differs between devices by design, and so may the size of a part.
    path = [
        op for op in blamed if not isinstance(op, Join | AxisIndex) and not data.isdisjoint(op.outs)
    ]
    if same := next((op for op in path if is_same_and_off(op, known)), None):
        # If a value computed from a wrong array is wrong, the parts of that array are to blame.
        before = blamed[: blamed.index(same)]
        joins = (join for join in before if isinstance(join, Join) and join.axes)
        parts = next((join.ins[0] for join in joins if is_off(join)), None)
        return (origin(body, parts, known) if isinstance(parts, Var) else None) or same
    # A value without a twin may correct what came before it.
    on_path = {*path} if known.get(target) is Relation.OFF else ()
    certain = [op for op in through(Relation.OFF, Relation.UNLIKE) if op in on_path]
    op = next((op for op in [*certain, *path] if is_off(op)), next(iter(path), None))
    return _in_loop(op, known) if op else None


def is_same_and_off(op: Op, known: Known) -> bool:
    """Return whether a result is wrong that is the same on all devices, or in a reduced group."""
    group = {*op.axes} if isinstance(op, Collective) and RULES[op.name].agrees else None
    same = [var for var in op.outs if not (var.axes if group is None else var.axes & group)]
    return any(known.get(var) is Relation.OFF for var in same)


def leads_to(body: Body, target: Var, known: Known, cause: Op) -> bool:
    """Return whether the result of an operation can be what makes `target` wrong.

    It cannot if every path from it to `target` passes through values that are right.
    """
    if not any(op is cause for op in walk(body.ops)):
        return True  # what runs is a rewritten form of the program that was read
    path = ancestors(body, target, lambda var: known.get(var) is not Relation.RIGHT)
    return any(op is cause for op in walk(path))


def _in_loop(op: Op, known: Known) -> Op:
    """Return the operation inside a loop at which its values become wrong, else the loop itself.

    After the last iteration a carry holds what that iteration computed. If exactly one wrong carry
    depends on no other wrong one, it is the first. But if it decides whether the loop continues,
    the number of iterations itself may be wrong.
    """
    if not isinstance(op, Scan | While):
        return op
    states = carried(op)
    off = [i for i, var in enumerate(op.outs[: len(states)]) if known.get(var) is Relation.OFF]
    needs = {i: needed(op.body, op.body.outs[i]) for i in off}
    free = [i for i in off if not any(states[j] in needs[i] for j in off if j != i)]
    if _deciding(op) & {*free}:
        return op
    target = op.body.outs[free[0]] if len(free) == 1 else None
    makers = {var: inner for inner in op.body.ops for var in inner.outs}
    maker = makers.get(target) if isinstance(target, Var) else None
    return maker if maker is not None and maker.where.file else op


def _deciding(loop: Scan | While) -> set[int]:
    """Return the indices of the carries that decide whether a loop continues."""
    if isinstance(loop, Scan):
        return set()
    made_of = needed(loop.cond, loop.cond.outs[0])
    return {i for i, var in enumerate(loop.cond.ins[loop.cond_consts :]) if var in made_of}


def _felt(op: Op, used: set[Var]) -> list[Var]:
    """Return the results of an operation that can make a later result wrong.

    A carry may do so inside the loop, even if it is not used after it. But how far an integer has
    counted matters only after the loop: the count may depend on the number of devices.
    """
    if not isinstance(op, Scan | While):
        return op.outs
    carries = op.outs[: len(carried(op))]
    counts = {v for v in carries if not v.shape and jnp.issubdtype(v.dtype, jnp.integer)}
    return [var for var in op.outs if var in used or var in {*carries} - counts]


def _reductions(op: Op, var: Var) -> tuple[str, ...]:
    """Return the reductions that may be missing; for a single number, pmax would fit by chance."""
    compares = isinstance(op, Leaf) and op.name in {"reduce_max", "reduce_min"}
    return tuple(REDUCE) if compares or math.prod(var.shape) > 1 else ("psum", "pmean")


def place(op: Op, body: Body) -> Where:
    """Return the line to report for an operation: its own, or that of a later one that has one."""
    line = line_of(op)
    if line.file:
        return line
    reached = dependents(body.ops, op.outs)
    lines = (user.where for user in body.ops if not reached.isdisjoint(user.ins))
    return next((where for where in lines if where.file), line)


def line_of(op: Op) -> Where:
    """Return the line of an operation; for one made by autodiff, the line of the `grad`."""
    sources = (op.source, *op.calls) if op.backward else ()
    lines = (line for source in sources for _, line in derivatives_of(source))
    return next(lines, op.where)


def gradient_before(body: Body, target: Atom) -> Op | None:
    """Return the last operation of a backward pass that a value depends on, if there is one."""
    backward = [op for op in ancestors(body, target) if op.backward]
    return backward[-1] if backward else None


def follows_sharding(body: Body, ones: Body, target: Atom) -> Op | None:
    """Return the first random draw whose shape or key depends on the mesh, if there is one."""
    draws = [op for op in walk(ancestors(body, target)) if _draws(op)]
    shapes = {var.shape for op in walk(ones.ops) if _draws(op) for var in op.outs}
    for op in draws:
        if any(var.axes or var.shape not in shapes for var in op.outs):
            return op
    return None


def _draws(op: Op) -> bool:
    """Return whether an operation draws random numbers; making keys does not count."""
    row = of(op.name) if isinstance(op, Leaf) else UNKNOWN
    return row.random and not row.keys
