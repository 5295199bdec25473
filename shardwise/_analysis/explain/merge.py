"""Remove common subexpressions: operations that repeat another one on the same values.

Derivatives leave many of them, and every compiler removes them. Operations behind a barrier that
JAX inserts for recomputation stay, and so do operations with effects.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..._program import Atom, Body, Op, Var, comparable, operation_key, with_bodies


def merged(body: Body) -> Body:
    """Return the list with each operation once, including those in nested lists."""
    replaced: dict[Var, Var] = {}
    first_by_key: dict[Any, Op] = {}
    ops = []
    for op in body.ops:
        ins = [_first(atom, replaced) for atom in op.ins]
        key = operation_key(op)
        first = op if key is None else first_by_key.setdefault((key, comparable(ins)), op)
        if first is not op:
            replaced.update(zip(op.outs, first.outs, strict=True))
            continue
        ops.append(with_bodies(dataclasses.replace(op, ins=ins), merged))
    return Body(body.ins, ops, [_first(atom, replaced) for atom in body.outs])


def _first(atom: Atom, same: dict[Var, Var]) -> Atom:
    return same.get(atom, atom) if isinstance(atom, Var) else atom
