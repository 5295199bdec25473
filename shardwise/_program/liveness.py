"""Which operations and values depend on which."""

from __future__ import annotations

from collections.abc import Iterable

from .ir import Atom, Op, Var


def live(ops: list[Op], outs: list[Atom]) -> list[Op]:
    """Return the operations that a result or an effect depends on."""
    used = {id(atom) for atom in outs}
    kept = []
    for op in reversed(ops):
        if op.effectful or any(id(var) in used for var in op.outs):
            used |= {id(atom) for atom in op.ins}
            kept.append(op)
    return kept[::-1]


def dependents(ops: list[Op], sources: Iterable[Var], but: Iterable[Var] = ()) -> set[Atom]:
    """Return these values and all that is computed from them, except through the values `but`."""
    found: set[Atom] = set(sources)
    for op in ops:
        if not found.isdisjoint(op.ins):
            found |= set(op.outs) - set(but)
    return found
