"""The program without repetitions: what is computed or sent twice from the same values is so once.

Derivatives leave many of them behind, and every compiler removes them. Two operations are the same
when they do the same to the same values; what JAX has put a barrier around, to be computed again,
stays, and so does what has an effect.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .._program import Atom, Body, Cond, Op, Scan, Var, While, comparable, doing


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
        ops.append(_nested(dataclasses.replace(op, ins=ins)))
    return Body(body.ins, ops, [_first(atom, same) for atom in body.outs])


def _first(atom: Atom, same: dict[Var, Var]) -> Atom:
    return same.get(atom, atom) if isinstance(atom, Var) else atom


def _nested(op: Op) -> Op:
    match op:
        case Scan():
            return dataclasses.replace(op, body=merged(op.body))
        case While():
            return dataclasses.replace(op, cond=merged(op.cond), body=merged(op.body))
        case Cond():
            return dataclasses.replace(op, branches=tuple(map(merged, op.branches)))
    return op
