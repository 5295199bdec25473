"""What comes of what in a list of operations."""

from __future__ import annotations

from collections.abc import Iterable

from .ir import Atom, Op, Var


def live(ops: list[Op], outs: list[Atom]) -> list[Op]:
    """The operations that something comes of: a result, or an effect."""
    used = {id(atom) for atom in outs}
    kept = []
    for op in reversed(ops):
        if op.effectful or any(id(var) in used for var in op.outs):
            used |= {id(atom) for atom in op.ins}
            kept.append(op)
    return kept[::-1]


def after(ops: list[Op], given: Iterable[Var], but: Iterable[Var] = ()) -> set[Atom]:
    """Some values, and all that is computed from them; what comes of them only by `but` is not."""
    found: set[Atom] = set(given)
    for op in ops:
        if not found.isdisjoint(op.ins):
            found |= set(op.outs) - set(but)
    return found
