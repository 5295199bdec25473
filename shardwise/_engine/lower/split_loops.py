"""Split loops at the collectives in them.

A collective inside a `scan` makes the whole loop run for all devices together, on stacked values.
Often the loop itself does not use what they exchange: the gradient of a layer is summed over
devices and returned, the weights of a layer are gathered from an input. Such a loop is split:

    a loop that each device runs by itself, which stacks the operands of the collective
    the collective, once, for all iterations together
    a loop over its results

The values are the same: nothing is summed in another order. The first loop then belongs to a stage
as any other operation does, so that its devices can run one after the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax

from ..._mesh import Axis
from ..._program import (
    Atom,
    Body,
    Collective,
    Leaf,
    Lit,
    Op,
    Scan,
    Var,
    annotate_loop,
    primitives,
    twin,
)
from .deadlock import DivergenceWatch
from .plan import block_sum, count_uses, joint_of, sums_in_blocks

Results = Sequence[tuple[Atom, Var]]
"""Values of an iteration, and the outputs of the loop that stack them."""


def split_loops(ops: Sequence[Op], watch: DivergenceWatch) -> list[Op]:
    """Split the loops of a list as far as that pays."""
    return [new for op in ops for new in (_loop(op, watch) if isinstance(op, Scan) else [op])]


def _loop(op: Scan, watch: DivergenceWatch) -> list[Op]:
    if not op.meets or op.effectful or not op.length or watch.concerns([op]):
        return [op]
    inner = split_loops(op.body.ops, watch)
    op = dataclasses.replace(op, body=Body(op.body.ins, inner, op.body.outs))
    for axis in sorted(op.meets):
        parts = _along(op, axis)
        if parts is not None:
            return split_loops(parts, watch)
    return [op]


def _along(op: Scan, axis: Axis) -> list[Op] | None:
    """Return the parts of a loop, without collectives along `axis` in them; None if impossible."""
    parts = _SplitLoop(op, axis).parts()
    last = parts[-1] if parts else None
    if not isinstance(last, Scan) or axis not in last.meets:
        return parts
    rest = _along(last, axis)
    return None if parts is None or rest is None else [*parts[:-1], *rest]


class _SplitLoop:
    """A loop split at its collectives along `axis`.

    A value of an iteration is late if it depends on a collective. Of the others, those that differ
    along the axis are computed in the first loop; those that are equal on all devices in each loop
    that reads them.
    """

    def __init__(self, op: Scan, axis: Axis):
        self.op, self.axis = op, axis
        self.producers = {var: inner for inner in op.body.ops for var in inner.outs}
        carried = op.body.ins[op.consts : op.consts + op.carry]
        self.inputs = set(op.body.ins).difference(carried)
        self.late = self._late()
        self.ready = [c for c in op.body.ops if isinstance(c, Collective) and self._is_ready(c)]
        self.stacks: dict[Var, Var] = {}
        """The inputs of the second loop: values of the first one, and of the collectives."""

    def _late(self) -> set[Atom]:
        op, late = self.op, set()
        carried = list(zip(op.body.ins[op.consts :], op.body.outs[: op.carry], strict=False))
        while True:
            count = len(late)
            for inner in op.body.ops:
                if self.axis in inner.meets or any(atom in late for atom in inner.ins):
                    late.update(inner.outs)
            late.update(var for var, output in carried if output in late)
            if len(late) == count:
                return late

    def _is_ready(self, c: Collective) -> bool:
        """Return whether devices can communicate here before the second loop begins."""
        early = self.axis in c.meets and len(c.ins) == 1 and c.ins[0] not in self.late
        return early and c.ins[0] not in self.op.body.ins[: self.op.consts]

    def parts(self) -> list[Op] | None:
        """Return first loop, collectives, second loop; None if this is impossible or does not
        pay."""
        if not self.ready:
            return None
        op = self.op
        ys = list(zip(op.body.outs[op.carry :], op.outs[op.carry :], strict=True))
        carries = {i for i, atom in enumerate(op.body.outs[: op.carry]) if self._is_early(atom)}
        added, operands, collectives = self._collectives(ys)
        results = {c.outs[0] for c in collectives}
        rest = [(atom, out) for atom, out in ys if not self._is_early(atom) and out not in results]
        second = _part(op, set(range(op.carry)) - carries, rest, self._stack)
        met_outs = {var for c in self.ready for var in c.outs}
        crossing = [(var, stack) for var, stack in self.stacks.items() if var not in met_outs]
        early = [(atom, out) for atom, out in ys if self._is_early(atom)]
        first = _part(op, carries, [*early, *operands, *crossing], lambda _: None, added)
        loops = [loop for loop in (first, second) if loop is not None]
        if not self._pays([var for var, _ in crossing]) or not all(map(_keeps_axes, loops)):
            return None
        last = [] if second is None else _at_once(second) or [second]
        return [*([] if first is None else [first]), *collectives, *last]

    def _is_early(self, atom: Atom) -> bool:
        """Return whether it is computed in the first loop alone."""
        return atom not in self.late and self.axis in atom.axes

    def _stack(self, var: Var) -> Var | None:
        """Return the input of the second loop for a value that it does not compute itself."""
        if var in self.stacks or (self._is_early(var) and not self._is_cheap(var)):
            return self.stacks.setdefault(var, _stacked(var, self.op.length))
        return None

    def _is_cheap(self, atom: Atom) -> bool:
        """Return whether it is cheap to recompute from the inputs of an iteration."""
        if isinstance(atom, Lit) or atom in self.inputs:
            return True
        producer = self.producers.get(atom)
        return (
            isinstance(producer, Leaf)
            and producer.name in CHEAP
            and all(map(self._is_cheap, producer.ins))
        )

    def _pays(self, crossing: Iterable[Var]) -> bool:
        """Return whether the additional stacks are no larger than the loop's inputs and outputs."""

        def weight(atom: Atom) -> int:
            times = self.axis.size if self.axis in atom.axes else 1
            return 0 if isinstance(atom, Lit) else atom.bytes * times

        op = self.op
        added = sum(map(weight, crossing)) + sum(weight(c.outs[0]) for c in self.ready)
        added += sum(weight(c.ins[0]) for c in self.ready if c.name not in primitives.SUMS)
        existing = [*op.body.ins[op.consts + op.carry :], *op.body.outs[op.carry :]]
        return added <= sum(map(weight, existing))

    def _collectives(self, ys: Results) -> tuple[list[Op], Results, list[Collective]]:
        """Return what the first loop adds for the collectives, their operands, and the
        collectives."""
        added: list[Op] = []
        operands: list[tuple[Atom, Var]] = []
        collectives: list[Collective] = []
        op, direct = self.op, dict(reversed(ys))
        xs = dict(zip(op.body.ins, op.ins, strict=True))
        uses = count_uses(op.body.ops, [atom for atom in op.body.outs if isinstance(atom, Var)])
        for c in self.ready:
            (operand,), (result,) = c.ins, c.outs
            assert isinstance(operand, Var)
            if operand in xs and operand not in op.body.ins[: op.consts + op.carry]:
                stacked_operand = xs[operand]
            else:
                if c.groups is None and sums_in_blocks(c.name, operand.dtype):
                    joint = joint_of(operand, self.producers, uses, self.axis)
                    inner = block_sum(c, operand, joint)
                    added.append(inner)
                    (operand,) = inner.outs
                stacked_operand = _stacked(operand, op.length)
                operands.append((operand, stacked_operand))
            # A result that is an output of the loop needs no second loop.
            stack = self.stacks[result] = direct.get(result) or _stacked(result, op.length)
            shifted = {k: v + 1 if k in DIMENSIONS else v for k, v in c.params.items()}
            collectives.append(
                dataclasses.replace(c, ins=[stacked_operand], outs=[stack], params=shifted)
            )
        return added, operands, collectives


DIMENSIONS = ("dimension", "split", "concat")
"""Parameters of collectives that are dimensions: a stack has one more in front."""


def _stacked(var: Var, length: int) -> Var:
    out = Var((length, *var.shape), var.dtype)
    out.axes = var.axes
    return out


def _keeps_axes(loop: Scan) -> bool:
    """Annotate a new loop; return whether its results differ over the same axes as before."""
    old_axes = [var.axes for var in loop.outs]
    annotate_loop(loop)
    unchanged = old_axes == [var.axes for var in loop.outs]
    for var, axes in zip(loop.outs, old_axes, strict=True):
        var.axes = axes
    return unchanged


def _part(
    op: Scan,
    carries: set[int],
    ys: Results,
    stack_of: Callable[[Var], Var | None],
    added: Sequence[Op] = (),
) -> Scan | None:
    """Return the part of a loop that computes these carried values and stacks.

    `stack_of` returns the stack of a value that is an input instead, `added` are additional
    operations. Return None if nothing is requested.
    """
    if not carries and not ys:
        return None
    ops = [*op.body.ops, *added]
    producers = {var: inner for inner in ops for var in inner.outs}
    position = {var: index for index, var in enumerate(op.body.ins)}
    carried = range(op.consts, op.consts + op.carry)
    outputs, inputs, computed = set(carries), dict[Var, Var](), set[int]()
    todo = [*(op.body.outs[i] for i in carries), *(atom for atom, _ in ys)]
    visited: set[Atom] = set()
    while todo:
        atom = todo.pop()
        if isinstance(atom, Lit) or atom in visited:
            continue
        visited.add(atom)
        index = position.get(atom)
        if index is not None and index not in carried:
            continue
        if (stack := stack_of(atom)) is not None:
            inputs[atom] = stack
        elif index is not None:
            outputs.add(index - op.consts)
            todo.append(op.body.outs[index - op.consts])
        else:
            computed.add(id(producers[atom]))
            todo += producers[atom].ins
    order = sorted(outputs)
    consts = [var for var in op.body.ins[: op.consts] if var in visited]
    state = [op.body.ins[op.consts + i] for i in order]
    xs = [var for var in op.body.ins[op.consts + op.carry :] if var in visited]
    outer = dict(zip(op.body.ins, op.ins, strict=True))
    body = Body(
        [*consts, *state, *xs, *inputs],
        [inner for inner in ops if id(inner) in computed],
        [*(op.body.outs[i] for i in order), *(atom for atom, _ in ys)],
    )
    return dataclasses.replace(
        op,
        ins=[*(outer[var] for var in [*consts, *state, *xs]), *inputs.values()],
        outs=[*(op.outs[i] if i in carries else twin(op.outs[i]) for i in order)]
        + [out for _, out in ys],
        body=body,
        consts=len(consts),
        carry=len(order),
    )


CHEAP = primitives.names(
    lambda p: (
        (p.pointwise and not p.series)
        or p.identity
        or p.moves == "reorder"
        or (p.acts == "reduces" and p.combines)
    )
)
"""Operations that can run for all iterations of a loop at once: they need no memory but their
results."""


def _at_once(loop: Scan) -> list[Op] | None:
    """Run all iterations of a loop at once, if they are independent and it needs no more memory."""
    cheap = all(isinstance(op, Leaf) and op.name in CHEAP for op in loop.body.ops)
    if loop.carry or not cheap:
        return None
    outs = dict(zip(loop.body.outs, loop.outs, strict=True))
    outputs = {var for op in loop.body.ops for var in op.outs}
    if len(outs) != len(loop.outs) or not outputs.issuperset(outs):
        return None
    outer = dict(zip(loop.body.ins, loop.ins, strict=True))
    fixed = {*loop.body.ins[: loop.consts]}
    ops: list[Op] = []
    for op in loop.body.ops:
        assert isinstance(op, Leaf)
        along = [None if isinstance(atom, Lit) or atom in fixed else 0 for atom in op.ins]
        run = partial(_all_iterations, op.run, along) if any(d == 0 for d in along) else op.run
        if run is op.run:
            fixed.update(op.outs)
        for var in op.outs:
            outer[var] = outs.get(var) or (var if var in fixed else _stacked(var, loop.length))
        ins = [atom if isinstance(atom, Lit) else outer[atom] for atom in op.ins]
        ops.append(dataclasses.replace(op, ins=ins, outs=[outer[v] for v in op.outs], run=run))
    return None if fixed & outs.keys() else ops


def _all_iterations(
    run: Callable[..., list[Any]], along: list[int | None], *arrays: Any
) -> list[Any]:
    return jax.vmap(run, in_axes=along)(*arrays)
