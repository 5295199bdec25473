"""The program without repetitions: what is computed or sent twice from the same values is so once.

Derivatives leave many of them behind, and every compiler removes them. Two operations are the same
when they do the same to the same values; what JAX has put a barrier around, to be computed again,
stays, and so does what has an effect.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..._program import Atom, Body, Op, Var, comparable, doing, with_bodies


def merged(body: Body) -> Body:
    """The list with each operation once, those in nested lists too."""
    same: dict[Var, Var] = {}
    known: dict[Any, Op] = {}
    ops = []
    for op in body.ops:
        ins = [_first(atom, same) for atom in op.ins]
        what = doing(op)
        first = op if what is None else known.setdefault((what, comparable(ins)), op)
        if first is not op:
            same.update(zip(op.outs, first.outs, strict=True))
            continue
        ops.append(with_bodies(dataclasses.replace(op, ins=ins), merged))
    return Body(body.ins, ops, [_first(atom, same) for atom in body.outs])


def _first(atom: Atom, same: dict[Var, Var]) -> Atom:
    return same.get(atom, atom) if isinstance(atom, Var) else atom
