"""Trace what a value depends on, back through a program and the iterations of its loops."""

from __future__ import annotations

from ..._program import Leaf, Op, Scan, Var, While
from ..._program.liveness import ancestors, carried, needed
from ..._program.primitives import STEPS


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
