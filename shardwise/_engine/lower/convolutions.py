"""Write convolutions in the form for which XLA has fast implementations.

The devices of a mesh run in a loop, in which XLA recognises less than outside of one:

- On a CPU it reorders dimensions, into the order for which it has fast implementations, only for
  convolutions outside loops (`_jax/convolutions.py`).
- On a GPU it recognises the gradient of a convolution's inputs, for which there are faster
  implementations, by its reversed weights. These are the same on all devices, so they would be
  reversed once, before the loop, and not be recognised inside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeGuard

from jax import lax

from ... import _jax
from ..._program import Atom, Body, Leaf, Op, Var, like, walk, with_bodies
from .deadlock import DivergenceWatch

Change = Callable[[Leaf, dict[Var, Op]], Sequence[Op]]
"""A function that replaces a convolution, given the operations that compute its operands."""


def reorder_convolutions(ops: Sequence[Op], watch: DivergenceWatch) -> list[Op]:
    """Reorder the dimensions of convolutions, in loops and branches too."""
    return _changed(ops, watch, _ordered)


def reverse_weights_in_place(ops: Sequence[Op], watch: DivergenceWatch) -> list[Op]:
    """Reverse the weights of convolutions where these are read, in loops and branches too."""
    return _changed(ops, watch, _reversing)


def _changed(ops: Sequence[Op], watch: DivergenceWatch, change: Change) -> list[Op]:
    producers = {var: op for op in ops for var in op.outs}
    out: list[Op] = []
    for op in ops:
        if _convolves(op):
            out += change(op, producers)
        elif not watch.concerns([op]) and any(map(_convolves, walk([op]))):
            out.append(with_bodies(op, partial(_body, watch, change)))
        else:
            out.append(op)
    return out


def _convolves(op: Op) -> TypeGuard[Leaf]:
    return isinstance(op, Leaf) and op.name == _jax.CONVOLUTION


def _body(watch: DivergenceWatch, change: Change, body: Body) -> Body:
    return dataclasses.replace(body, ops=_changed(body.ops, watch, change))


def _reversing(op: Leaf, producers: dict[Var, Op]) -> list[Op]:
    lhs, rhs = op.ins
    producer = producers.get(rhs) if isinstance(rhs, Var) else None
    if not isinstance(producer, Leaf) or producer.name != "rev":
        return [op]
    reverse, convolve = producer.run, op.run

    def run(lhs: Any, weights: Any) -> list[Any]:
        return convolve(lhs, *reverse(weights))

    return [dataclasses.replace(op, ins=[lhs, *producer.ins], run=run)]


def _ordered(op: Leaf, _: dict[Var, Op]) -> list[Op]:
    orders = _jax.unordered(op.params, like(op.ins[1]).shape)
    if orders is None or op.primitive is None:
        return [op]
    (lhs, rhs), (conv_out,) = op.ins, op.outs
    left, right = _like(lhs, orders.left), _like(rhs, orders.right)
    reordered = like(conv_out)
    reordered.axes = conv_out.axes
    reordered.shape = tuple(
        conv_out.shape[orders.after.index(d)] for d in range(len(conv_out.shape))
    )
    params = op.params | {"dimension_numbers": orders.numbers}
    return [
        _transpose(op, lhs, left, orders.left),
        _transpose(op, rhs, right, orders.right),
        _leaf(op, [left, right], reordered, op.name, op.primitive, params),
        _transpose(op, reordered, conv_out, orders.after),
    ]


def _transpose(op: Leaf, atom: Atom, out: Var, order: Sequence[int]) -> Leaf:
    return _leaf(op, [atom], out, "transpose", lax.transpose_p, {"permutation": order})


def _leaf(
    op: Leaf, ins: list[Atom], out: Var, name: str, primitive: Any, params: dict[str, Any]
) -> Leaf:
    """Return an operation that replaces another one."""
    run = _jax.applying(primitive, params, ())
    return dataclasses.replace(
        op, ins=ins, outs=[out], name=name, run=run, params=params, needs=out.axes
    )


def _like(atom: Atom, order: Sequence[int]) -> Var:
    """Return a new value of this type, with its dimensions in another order."""
    out = like(atom)
    out.shape, out.axes = tuple(out.shape[d] for d in order), atom.axes
    return out
