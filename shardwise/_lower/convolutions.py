"""Convolutions are written in the one order of dimensions that XLA is fast at on a CPU.

It brings them into this order itself, but looks for them outside of loops only, and the devices of
a mesh are run in a loop. The gradient of a convolution's weights, which autodiff writes in another
order, takes ten to sixty times as long there. So it is brought into order here:

    conv(x, w)   becomes   transpose(conv(transpose(x), transpose(w)))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeGuard

import numpy as np
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
    return isinstance(op, Leaf) and op.name == "conv_general_dilated"


def _body(watch: Watch, body: Body) -> Body:
    return dataclasses.replace(body, ops=in_order(body.ops, watch))


def _ordered(op: Leaf) -> list[Op]:
    (lhs, rhs), (made,) = op.ins, op.outs
    images, weights, results = map(_features_last, op.params["dimension_numbers"])
    weights = (*weights[1:], weights[0])
    if all(map(_is_kept, (images, weights, results))) or op.primitive is None:
        return [op]
    left, right, there = _like(lhs, images), _like(rhs, weights), _like(made, results)
    params = op.params | {"dimension_numbers": _numbers(len(images))}
    run = _jax.applying(op.primitive, params, ())
    return [
        _transpose(op, lhs, left, images),
        _transpose(op, rhs, right, weights),
        dataclasses.replace(op, ins=[left, right], outs=[there], params=params, run=run),
        _transpose(op, there, made, [int(d) for d in np.argsort(results)]),
    ]


def _features_last(spec: Sequence[int]) -> tuple[int, ...]:
    """Where the dimensions are: batch, space, features; of weights: outputs, space, inputs."""
    first, features, *space = spec
    return (first, *space, features)


def _numbers(rank: int) -> Any:
    """Batch, space, features; of weights: space, inputs, outputs."""
    last = rank - 1
    images = (0, last, *range(1, last))
    return lax.ConvDimensionNumbers(images, (last, last - 1, *range(last - 1)), images)


def _is_kept(order: Sequence[int]) -> bool:
    return list(order) == [*range(len(order))]


def _transpose(op: Leaf, atom: Atom, made: Var, order: Sequence[int]) -> Leaf:
    params = {"permutation": tuple(order)}
    run = _jax.applying(lax.transpose_p, params, ())
    return dataclasses.replace(
        op, ins=[atom], outs=[made], name="transpose", run=run, params=params, needs=made.axes
    )


def _like(atom: Atom, order: Sequence[int]) -> Var:
    """A new value of this type, with its dimensions in another order."""
    out = like(atom)
    out.shape, out.axes = tuple(out.shape[d] for d in order), atom.axes
    return out
