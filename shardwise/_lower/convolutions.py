"""Convolutions are in the order of dimensions that XLA is fast at (`_jax/convolutions.py`).

The devices of a mesh are run in a loop, and XLA brings into order only what is in none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeGuard

from jax import lax

from .. import _jax
from .._program import Atom, Body, Leaf, Op, Var, like, walk, with_bodies
from .trouble import Watch


def in_order(ops: Sequence[Op], watch: Watch) -> list[Op]:
    """The list with such convolutions, in its loops and branches too."""
    out: list[Op] = []
    for op in ops:
        if _convolves(op):
            out += _ordered(op)
        elif not watch.concerns([op]) and any(map(_convolves, walk([op]))):
            out.append(with_bodies(op, partial(_body, watch)))
        else:
            out.append(op)
    return out


def _convolves(op: Op) -> TypeGuard[Leaf]:
    return isinstance(op, Leaf) and op.name == _jax.CONVOLUTION


def _body(watch: Watch, body: Body) -> Body:
    return dataclasses.replace(body, ops=in_order(body.ops, watch))


def _ordered(op: Leaf) -> list[Op]:
    orders = _jax.unordered(op.params, like(op.ins[1]).shape)
    if orders is None or op.primitive is None:
        return [op]
    (lhs, rhs), (made,) = op.ins, op.outs
    left, right = _like(lhs, orders.left), _like(rhs, orders.right)
    there = like(made)
    there.axes = made.axes
    there.shape = tuple(made.shape[orders.after.index(d)] for d in range(len(made.shape)))
    params = op.params | {"dimension_numbers": orders.numbers}
    return [
        _transpose(op, lhs, left, orders.left),
        _transpose(op, rhs, right, orders.right),
        _leaf(op, [left, right], there, op.name, op.primitive, params),
        _transpose(op, there, made, orders.after),
    ]


def _transpose(op: Leaf, atom: Atom, made: Var, order: Sequence[int]) -> Leaf:
    return _leaf(op, [atom], made, "transpose", lax.transpose_p, {"permutation": order})


def _leaf(
    op: Leaf, ins: list[Atom], made: Var, name: str, primitive: Any, params: dict[str, Any]
) -> Leaf:
    """An operation in the place of another one."""
    run = _jax.applying(primitive, params, ())
    return dataclasses.replace(
        op, ins=ins, outs=[made], name=name, run=run, params=params, needs=made.axes
    )


def _like(atom: Atom, order: Sequence[int]) -> Var:
    """A new value of this type, with its dimensions in another order."""
    out = like(atom)
    out.shape, out.axes = tuple(out.shape[d] for d in order), atom.axes
    return out
