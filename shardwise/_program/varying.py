"""The axes over which each value differs.

JAX's types (`{V:data}`) follow the declarations of a program. This analysis follows its operations:
a value gathered from all devices is the same on all of them, whatever its type. Loops are iterated
to a fixed point.
"""

from __future__ import annotations

from collections.abc import Sequence

from .._mesh import Axis
from .collectives import RULES
from .ir import AxisIndex, Body, Collective, Cond, Join, Leaf, Op, Scan, Split, While

Axes = frozenset[Axis]
NONE: Axes = frozenset()


def annotate(body: Body) -> None:
    """Set `axes` of every value, and `needs` and `meets` of every operation."""
    _annotate(body, [NONE] * len(body.ins), stored=True)


def differing(body: Body) -> list[Axes]:
    """Return the axes over which each output may differ.

    These may be fewer than the axes it is stored for: an operation that runs once for each
    coordinate has a result for each, even if all are equal. Call `annotate` afterwards.
    """
    return _annotate(body, [NONE] * len(body.ins), stored=False)


def _annotate(body: Body, ins: Sequence[Axes], stored: bool) -> list[Axes]:
    for var, axes in zip(body.ins, ins, strict=True):
        var.axes = axes
    for op in body.ops:
        _annotate_op(op, stored)
    return [atom.axes for atom in body.outs]


def _annotate_op(op: Op, stored: bool) -> None:
    axes_of_inputs = _union(atom.axes for atom in op.ins)
    op.needs = axes_of_inputs
    match op:
        case AxisIndex(axis=axis):
            _set(op, [frozenset({axis})])
        case Split():
            _set(op, [axes_of_inputs | frozenset(op.axes)])
        case Join():
            op.meets = axes_of_inputs & frozenset(op.axes)
            _set(op, [axes_of_inputs - frozenset(op.axes)])
        case Collective():
            axes = frozenset(op.axes)
            op.meets = axes_of_inputs & axes
            keeps = op.groups is not None or not RULES[op.name].agrees
            _set(op, [axes_of_inputs | axes if keeps else axes_of_inputs - axes])
        case Leaf():
            if op.effectful:
                op.needs = axes_of_inputs | frozenset(op.scope)
            _set(op, [op.needs] * len(op.outs))
        case Scan():
            _nested(op, _scan(op, stored), stored)
        case While():
            _nested(op, _while(op, stored), stored)
        case Cond():
            _nested(op, _cond(op, stored), stored)
        case _:
            raise AssertionError(f"no rule for {type(op).__name__}")


def _scan(op: Scan, stored: bool) -> list[Axes]:
    consts, carry, xs = _parts(op, op.consts, op.carry)
    while True:
        outs = _annotate(op.body, [*consts, *carry, *xs], stored)
        new_carry = [old | new for old, new in zip(carry, outs, strict=False)]
        if new_carry == carry:
            return [*carry, *outs[op.carry :]]
        carry = new_carry


def _while(op: While, stored: bool) -> list[Axes]:
    cond_consts, body_consts, carry = _parts(op, op.cond_consts, op.body_consts)
    while True:
        (decision,) = _annotate(op.cond, [*cond_consts, *carry], stored)
        outs = _annotate(op.body, [*body_consts, *carry], stored)
        # Devices that may leave the loop at different times differ in all they carry; those that
        # meet inside it have to leave together.
        diverging = decision - communicates(op)
        new_carry = [old | new | diverging for old, new in zip(carry, outs, strict=True)]
        if new_carry == carry:
            return carry
        carry = new_carry


def _cond(op: Cond, stored: bool) -> list[Axes]:
    index, *operands = [atom.axes for atom in op.ins]
    outs = [_annotate(branch, operands, stored) for branch in op.branches]
    diverging = index - communicates(op)
    return [_union(column) | diverging for column in zip(*outs, strict=True)]


def annotate_loop(op: Scan) -> None:
    """Annotate a loop whose body is annotated already."""
    op.needs = _union(atom.axes for atom in op.ins)
    carry = op.body.ins[op.consts : op.consts + op.carry]
    _nested(op, [atom.axes for atom in [*carry, *op.body.outs[op.carry :]]], stored=True)


def _nested(op: Op, outs: list[Axes], stored: bool) -> None:
    inner = [inner_op for body in op.bodies for inner_op in body.ops]
    sources = _union(inner_op.needs | _result_axes(inner_op) for inner_op in inner)
    op.meets = communicates(op) | _union(inner_op.meets for inner_op in inner)
    op.needs = op.needs | sources
    _set(op, [axes | (op.needs - op.meets) for axes in outs] if stored else outs)


def _result_axes(op: Op) -> Axes:
    return _union(var.axes for var in op.outs)


def communicates(op: Op) -> Axes:
    """Return the axes of all collectives in the nested bodies of an operation."""
    inner = [inner_op for body in op.bodies for inner_op in body.ops]
    axes = _union(frozenset(i.axes) for i in inner if isinstance(i, Collective))
    return axes | _union(communicates(i) for i in inner)


def _parts(op: Op, first: int, second: int) -> tuple[list[Axes], list[Axes], list[Axes]]:
    axes = [atom.axes for atom in op.ins]
    return axes[:first], axes[first : first + second], axes[first + second :]


def _set(op: Op, axes: Sequence[Axes]) -> None:
    for var, differs in zip(op.outs, axes, strict=True):
        var.axes = differs


def _union(sets) -> Axes:
    out: Axes = NONE
    for axes in sets:
        out |= axes
    return out
