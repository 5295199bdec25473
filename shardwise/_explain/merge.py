"""The program without repetitions: what is computed or sent twice from the same values is so once.

Derivatives leave many of them behind, and every compiler removes them. Two operations are the same
when they do the same to the same values; what JAX has put a barrier around, to be computed again,
stays, and so does what has an effect.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .._program import (
    Atom,
    AxisIndex,
    Body,
    Collective,
    Cond,
    Leaf,
    Lit,
    Op,
    Scan,
    Split,
    Var,
    While,
)

SMALL = 16
"""Up to how many elements two constants are compared."""


def merged(body: Body) -> Body:
    """The list with each operation once, those in nested lists too."""
    same: dict[Var, Var] = {}
    known: dict[Any, Op] = {}
    ops = []
    for op in body.ops:
        ins = [_first(atom, same) for atom in op.ins]
        key = _key(op, ins)
        first = known.setdefault(key, op) if key is not None else op
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


def _key(op: Op, ins: list[Atom]) -> Any:
    """What an operation does, and to what; None for one that stands for itself."""
    values = tuple(map(_hashable, ins))
    match op:
        case Leaf() if op.primitive is not None:
            return op.primitive, _hashable(op.params), values
        case Leaf() if not op.effectful and hasattr(op.run, "func"):
            run: Any = op.run
            return run.func, _hashable(run.args), values
        case Collective():
            return op.name, op.axes, _hashable(op.params), op.groups, values
        case AxisIndex():
            return op.axis, op.scope
        case Split():
            return op.placement, values
    return None


def _hashable(value: Any) -> Any:
    if isinstance(value, Lit):
        return _constant(value.value)
    if isinstance(value, dict):
        return tuple((key, _hashable(inner)) for key, inner in sorted(value.items()))
    if isinstance(value, tuple | list):
        return tuple(map(_hashable, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def _constant(value: Any) -> Any:
    if isinstance(value, bool | int | float | complex | np.generic):
        return type(value), str(np.asarray(value).dtype), np.asarray(value).tobytes()
    if isinstance(value, np.ndarray) and value.size <= SMALL:
        return str(value.dtype), value.shape, value.tobytes()
    return id(value)
