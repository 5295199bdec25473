"""Which operations and values depend on which."""

from __future__ import annotations

from collections.abc import Iterable

from .ir import Atom, Op, Var


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
