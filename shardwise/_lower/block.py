"""Sums over the devices of a block, which are computed at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._collectives import widen
from .._program import Atom, Leaf
from .plan import BlockSum, Joint


def sum_block(op: BlockSum, arrays: Sequence[Any], block: str | None) -> Any:
    """The sum over the `vmap` named `block`; without one, what the device itself has."""
    if op.joint is None:
        (array,) = arrays
        return array if block is None else _sum(widen(array), block)
    return _alone(op.joint, arrays) if block is None else _in_one(op.joint)(*arrays)


def _sum(x: Any, block: str) -> Any:
    """A sum over the devices of a block: one of a dimension, once the `vmap` is done.

    JAX 0.12 cannot lower what becomes of a `psum` there if the types say how arrays lie.
    """
    if x.dtype == jnp.bool_:
        return lax.psum(x, block)
    return lax.reduce_sum(lax.all_gather(x, block), (0,))


def _alone(joint: Joint, arrays: Sequence[Any]) -> Any:
    return _run(joint, arrays, lambda op, arrays: op.run(*arrays)[0])


def _in_one(joint: Joint) -> Any:
    """What one device makes, which becomes under `vmap` the sum of what all make."""

    @jax.custom_batching.custom_vmap
    def make(*arrays: Any) -> Any:
        return widen(_alone(joint, arrays))

    @make.def_vmap
    def make_all(size: int, batched: Sequence[bool], *arrays: Any) -> Any:
        along = dict(zip(joint.ins, batched, strict=True))

        def stack(atom: Atom, x: Any) -> Any:
            return x if along[atom] else jnp.broadcast_to(x, (size, *jnp.shape(x)))

        def run(op: Leaf, arrays: Sequence[Any]) -> Any:
            if op.name == "scatter-add":
                operand, *others = arrays
                others = map(stack, op.ins[1:], others)
                return widen(_scatter_add(op.params, size, operand, *others))
            if op.name in RULES:
                return widen(RULES[op.name](op.params, *map(stack, op.ins, arrays)))
            return op.run(*arrays)[0]

        return _run(joint, arrays, run), False

    return make


def _run(joint: Joint, arrays: Sequence[Any], run: Callable[[Leaf, Sequence[Any]], Any]) -> Any:
    env = dict(zip(joint.ins, arrays, strict=True))
    for op in joint.ops:
        env[op.outs[0]] = run(op, [env[atom] for atom in op.ins])
    return env[joint.ops[-1].outs[0]]


# --- the sum of what the devices make, whose operands are stacked in front, as one operation


Params = dict[str, Any]


def _behind(dims: Iterable[int]) -> tuple[int, ...]:
    return tuple(d + 1 for d in dims)


def _dot(params: Params, lhs: Any, rhs: Any) -> Any:
    (lc, rc), (lb, rb) = params["dimension_numbers"]
    return lax.dot_general(
        lhs,
        rhs,
        (((0, *_behind(lc)), (0, *_behind(rc))), (_behind(lb), _behind(rb))),
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )


def _conv(params: Params, lhs: Any, rhs: Any) -> Any:
    """The devices become further features, which a convolution sums over."""
    numbers = params["dimension_numbers"]
    lhs, rhs = (
        lax.collapse(jnp.moveaxis(x, 0, dim), dim, dim + 2)
        for x, dim in ((lhs, numbers.lhs_spec[1]), (rhs, numbers.rhs_spec[1]))
    )
    rest = {name: value for name, value in params.items() if name != "out_sharding"}
    return lax.conv_general_dilated(lhs, rhs, **rest)


RULES: dict[str, Callable[..., Any]] = {"dot_general": _dot, "conv_general_dilated": _conv}


def _scatter_add(params: Params, size: int, operand: Any, indices: Any, updates: Any) -> Any:
    """The devices become further updates of what is the same on all of them, mostly zeros."""
    numbers = params["dimension_numbers"]
    return lax.scatter_add(
        widen(operand) * size,
        indices,
        widen(updates),
        numbers._replace(
            update_window_dims=_behind(numbers.update_window_dims),
            scatter_indices_batching_dims=_behind(numbers.scatter_indices_batching_dims),
        ),
        mode=params["mode"],
    )
