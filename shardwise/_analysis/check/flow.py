"""What a value is made of: back through a program, and through the turns of its loops."""

from __future__ import annotations

from ..._program import Atom, Body, Leaf, Op, Scan, Var, While
from ..._program.primitives import STEPS


def ancestors(body: Body, target: Atom) -> list[Op]:
    """The operations that a value depends on, in program order."""
    open_ = {id(target)}
    found = []
    for op in reversed(body.ops):
        if any(id(out) in open_ for out in op.outs):
            open_ |= {id(atom) for atom in op.ins}
            found.append(op)
    return found[::-1]


def needed(body: Body, target: Atom) -> set[Atom]:
    """What a value of a body is made of, and the value itself."""
    made_of = (atom for op in ancestors(body, target) for atom in op.ins)
    return {atom for atom in (target, *made_of) if isinstance(atom, Var)}


def carried(loop: Scan | While) -> list[Var]:
    """What the body of a loop is given from its last turn."""
    first = loop.consts if isinstance(loop, Scan) else loop.body_consts
    return loop.body.ins[first:][: loop.carry if isinstance(loop, Scan) else None]


def deciding(loop: Scan | While) -> set[int]:
    """Which of the values that a loop carries decide on another turn."""
    if isinstance(loop, Scan):
        return set()
    made_of = needed(loop.cond, loop.cond.outs[0])
    return {i for i, var in enumerate(loop.cond.ins[loop.cond_consts :]) if var in made_of}


def felt(op: Op, used: set[Var]) -> list[Var]:
    """What an operation gives that a result may be wrong for.

    What a loop carries is felt where it is used afterwards, or goes at some turn into what is. A
    count of its turns is felt only afterwards: they may be as many as there are devices.
    """
    if not isinstance(op, Scan | While):
        return op.outs
    own = carried(op)
    after = {i for i, out in enumerate(op.outs) if out in used}
    found = after | deciding(op)
    open_ = [*found]
    while open_:
        made_of = needed(op.body, op.body.outs[open_.pop()])
        more = {i for i, var in enumerate(own) if var in made_of} - found
        found |= more
        open_ += more
    return [op.outs[i] for i in sorted(found) if i in after or not counts(op, i)]


def counts(loop: Scan | While, index: int) -> bool:
    """Whether a loop does no more to a value that it carries than to add a constant."""
    makers = {out: op for op in loop.body.ops for out in op.outs}
    atom, before, steps = loop.body.outs[index], carried(loop)[index], 0
    while atom is not before:
        op = makers.get(atom) if isinstance(atom, Var) else None
        if not isinstance(op, Leaf) or op.name not in (*STEPS, "convert_element_type"):
            return False
        given = [a for a in op.ins if isinstance(a, Var)]
        if len(given) != 1 or (op.name == "sub" and op.ins[0] is not given[0]):
            return False
        steps += op.name != "convert_element_type"
        atom = given[0]
    return steps > 0
