"""Which operations and values depend on which."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .ir import Atom, Body, Op, Scan, Var, While


def live(ops: list[Op], outs: list[Atom]) -> list[Op]:
    """Return the operations that a result or an effect depends on."""
    used = {id(atom) for atom in outs}
    result = []
    for op in reversed(ops):
        if op.effectful or any(id(var) in used for var in op.outs):
            used |= {id(atom) for atom in op.ins}
            result.append(op)
    return result[::-1]


def dependents(ops: list[Op], sources: Iterable[Var], but: Iterable[Var] = ()) -> set[Atom]:
    """Return these values and all that is computed from them, except through the values `but`."""
    result: set[Atom] = set(sources)
    for op in ops:
        if not result.isdisjoint(op.ins):
            result |= set(op.outs) - set(but)
    return result


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
