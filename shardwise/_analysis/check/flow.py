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
    makers = {out: op for op in loop.body.ops for out in op.outs}
    atom, state, steps = loop.body.outs[index], carried(loop)[index], 0
    while atom is not state:
        op = makers.get(atom) if isinstance(atom, Var) else None
        if not isinstance(op, Leaf) or op.name not in (*STEPS, "convert_element_type"):
            return False
        operands = [operand for operand in op.ins if isinstance(operand, Var)]
        if len(operands) != 1 or (op.name == "sub" and op.ins[0] is not operands[0]):
            return False
        steps += op.name != "convert_element_type"
        atom = operands[0]
    return steps > 0
