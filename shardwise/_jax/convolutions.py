"""Convolutions with the dimension order for which XLA is fast on a CPU.

XLA has fast implementations for a single order, and reorders dimensions itself, but only outside
loops. The gradient of a convolution's weights, which autodiff writes in another order, takes twenty
to forty times as long in a loop. For a depthwise convolution, and for small ones in three
dimensions, its implementation is forty times slower than the plain loops that it generates for any
other order. (`benchmarks/workarounds.py` measures both.) So code that puts a user's program into a
loop reorders them:

    conv(x, w)   becomes   transpose(conv(transpose(x), transpose(w)))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax import lax

from .jaxprs import bind, equations, open_jaxpr
from .source_lines import same_place

CONVOLUTION = "conv_general_dilated"
FEW_IN_A_GROUP = 2
"""Inputs of each group, up to which plain loops are faster."""
FEW_IN_SPACE = 64
"""Pairs of input and output in three dimensions, below which plain loops are faster."""


@dataclasses.dataclass(frozen=True)
class Orders:
    """The permutations of both operands before, and of the result after."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    after: tuple[int, ...]
    numbers: lax.ConvDimensionNumbers
    """The dimension numbers in that order."""


def unordered(params: dict[str, Any], weights: Sequence[int]) -> Orders | None:
    """Return how to permute a convolution with weights of this shape; None if it is in order."""
    left, (outputs, *space, inputs), results = map(_features_last, params["dimension_numbers"])
    last = len(left) - 1
    images = (0, last, *range(1, last))
    if _is_direct(params, weights):
        right, numbers = (inputs, *space, outputs), (last, 0, *range(1, last))
    else:
        right, numbers = (*space, inputs, outputs), (last, last - 1, *range(last - 1))
    after = tuple(map(int, np.argsort(results)))
    standard = lax.ConvDimensionNumbers(images, numbers, images)
    return None if standard == params["dimension_numbers"] else Orders(left, right, after, standard)


def _is_direct(params: dict[str, Any], weights: Sequence[int]) -> bool:
    """Return whether XLA's plain loops, which it generates for any other order, are faster."""
    outputs, inputs, *space = params["dimension_numbers"].rhs_spec
    if params["feature_group_count"] > 1:
        return weights[inputs] <= FEW_IN_A_GROUP
    is_small = weights[inputs] * weights[outputs] < FEW_IN_SPACE
    return len(space) > 2 and (is_small or max(params["lhs_dilation"]) > 1)


def _features_last(spec: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions as batch, space, features; for weights: outputs, space, inputs."""
    first, features, *space = spec
    return (first, *space, features)


# --- in a function that runs in a loop


def are_unordered(jaxpr: Any) -> bool:
    """Return whether a program has a convolution that is not in order."""
    return any(
        eqn.primitive.name == CONVOLUTION
        and unordered(eqn.params, eqn.invars[1].aval.shape) is not None
        for eqn in equations(jaxpr)
    )


def in_order(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function with its convolutions reordered, except those in its own loops."""

    def run(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(f, return_shape=True)(*args)
        outs = _evaluate(closed, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), outs)

    return run


def _evaluate(jaxpr: Any, args: Sequence[Any]) -> list[Any]:
    jaxpr = open_jaxpr(jaxpr)
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*jaxpr.consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        with eqn.ctx.manager, same_place(eqn.source_info):
            outs = _apply(eqn, list(map(read, eqn.invars)))
        env.update(zip(eqn.outvars, outs, strict=True))
    return list(map(read, jaxpr.outvars))


def _apply(eqn: Any, ins: list[Any]) -> list[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name == CONVOLUTION and (orders := unordered(params, ins[1].shape)):
        left, right = ins
        ins = [lax.transpose(left, orders.left), lax.transpose(right, orders.right)]
        (out,) = bind(eqn.primitive, params | {"dimension_numbers": orders.numbers}, *ins)
        return [lax.transpose(out, orders.after)]
    if name in ("jit", "remat2") and are_unordered(params["jaxpr"]):
        inner = partial(_evaluate, params["jaxpr"])
        if name == "jit":
            return inner(ins)
        ordered = jax.make_jaxpr(lambda *args: inner(args))(*ins)
        assert not ordered.consts, "a rematerialised function takes all it needs"
        params = params | {"jaxpr": getattr(ordered, "jaxpr", ordered)}
    return bind(eqn.primitive, params, *ins)
