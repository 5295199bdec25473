"""Trace what a value depends on, back through a program and the iterations of its loops."""

from __future__ import annotations

from collections.abc import Callable

from ..._program import Atom, Body, Leaf, Op, Scan, Var, While
from ..._program.primitives import STEPS


def ancestors(
    body: Body, target: Atom, through: Callable[[Var], bool] = lambda _: True
) -> list[Op]:
    """Return the operations that a value depends on `through` some values, in program order."""
    open_ = {id(target)}
    ops = []
    for op in reversed(body.ops):
        if any(id(out) in open_ for out in op.outs):
            open_ |= {id(atom) for atom in op.ins if isinstance(atom, Var) and through(atom)}
            ops.append(op)
    return ops[::-1]


def needed(body: Body, target: Atom) -> set[Atom]:
    """Return the variables that a value of a body depends on, including itself."""
    made_of = (atom for op in ancestors(body, target) for atom in op.ins)
    return {atom for atom in (target, *made_of) if isinstance(atom, Var)}


def carried(loop: Scan | While) -> list[Var]:
    """Return the inputs of a loop body that hold the carry."""
    first = loop.consts if isinstance(loop, Scan) else loop.body_consts
    return loop.body.ins[first:][: loop.carry if isinstance(loop, Scan) else None]


def deciding(loop: Scan | While) -> set[int]:
    """Return the indices of the carries that decide whether a loop continues."""
    if isinstance(loop, Scan):
        return set()
    made_of = needed(loop.cond, loop.cond.outs[0])
    return {i for i, var in enumerate(loop.cond.ins[loop.cond_consts :]) if var in made_of}


def felt(op: Op, used: set[Var]) -> list[Var]:
    """Return the results of an operation that can make a later result wrong.

    A carry matters if it is used after the loop, or if some iteration passes it on to one that is.
    An iteration counter matters only after the loop: the count may depend on the number of devices.
    """
    if not isinstance(op, Scan | While):
        return op.outs
    carries = carried(op)
    after = {i for i, out in enumerate(op.outs) if out in used}
    indices = after | deciding(op)
    open_ = [*indices]
    while open_:
        made_of = needed(op.body, op.body.outs[open_.pop()])
        more = {i for i, var in enumerate(carries) if var in made_of} - indices
        indices |= more
        open_ += more
    return [op.outs[i] for i in sorted(indices) if i in after or not counts(op, i)]


def counts(loop: Scan | While, index: int) -> bool:
    """Return whether a loop does nothing to a carry but add a constant."""
    path = ancestors(loop.body, loop.body.outs[index])
    names = [op.name if isinstance(op, Leaf) else "" for op in path]
    operands = [[isinstance(atom, Var) for atom in op.ins] for op in path]
    return (
        any(name in STEPS for name in names)
        and all(name in (*STEPS, "convert_element_type") for name in names)
        and all(sum(are_variables) == 1 for are_variables in operands)
        and all(row[0] for row, name in zip(operands, names, strict=True) if name == "sub")
        and carried(loop)[index] in path[0].ins
    )
