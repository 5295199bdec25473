"""Sums over the devices of a block that run at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..._jax.sums import sum_products
from ..._program import Atom, Leaf
from ..._program.collectives import wide, widen
from .machine import on_host
from .plan import BlockSum, Joint


def sum_block(op: BlockSum, arrays: Sequence[Any], block: str | None) -> Any:
    """Return the sum over the `vmap` named `block`; without one, the value of the device."""
    if op.joint is None:
        (array,) = arrays
        return array if block is None else _sum(widen(array), block)
    if block is None:
        return _alone(op.joint, arrays)
    return _sum_under_vmap(op.joint)(lax.axis_index(block), *arrays)


def _sum(x: Any, block: str) -> Any:
    """Sum over the devices of a block: a sum over one dimension, after the `vmap`.

    JAX 0.12 cannot lower the batched `psum` there if the types have shardings.
    """
    if x.dtype == jnp.bool_:
        return lax.psum(x, block)
    return sum_products(lax.all_gather(x, block))


def _alone(joint: Joint, arrays: Sequence[Any]) -> Any:
    return _run(joint, arrays, lambda op, arrays: op.run(*arrays)[0])


def _sum_under_vmap(joint: Joint) -> Any:
    """Return a function for one device that under `vmap` computes the sum over all.

    The first argument differs between devices, so that the function is batched even if all others
    are the same.
    """

    @jax.custom_batching.custom_vmap
    def term(_: Any, *arrays: Any) -> Any:
        return widen(_alone(joint, arrays))

    @term.def_vmap
    def sum_all(size: int, batched: Sequence[bool], _: Any, *arrays: Any) -> Any:
        along = dict(zip(joint.ins, batched[1:], strict=True))

        def stack(atom: Atom, x: Any) -> Any:
            return x if along[atom] else jnp.broadcast_to(x, (size, *jnp.shape(x)))

        def run(op: Leaf, arrays: Sequence[Any]) -> Any:
            if op.name not in RULES:
                return op.run(*arrays)[0]
            shared = 1 if op.name == "scatter-add" else 0
            operands = map(stack, op.ins[shared:], arrays[shared:])
            return RULES[op.name](op, *arrays[:shared], *operands)

        return _run(joint, arrays, run), False

    return term


def _run(joint: Joint, arrays: Sequence[Any], run: Callable[[Leaf, Sequence[Any]], Any]) -> Any:
    env = dict(zip(joint.ins, arrays, strict=True))
    for op in joint.ops:
        env[op.outs[0]] = run(op, [env[atom] for atom in op.ins])
    return env[joint.ops[-1].outs[0]]


# --- sums over devices as one operation, whose operands are stacked in front


def _behind(dims: Iterable[int]) -> tuple[int, ...]:
    return tuple(d + 1 for d in dims)


def _dot(op: Leaf, lhs: Any, rhs: Any) -> Any:
    (lc, rc), (lb, rb) = op.params["dimension_numbers"]
    out = lax.dot_general(
        lhs,
        rhs,
        (((0, *_behind(lc)), (0, *_behind(rc))), (_behind(lb), _behind(rb))),
        precision=op.params["precision"],
        preferred_element_type=op.params["preferred_element_type"],
    )
    return widen(out)


def _conv(op: Leaf, lhs: Any, rhs: Any) -> Any:
    """Turn the devices into further features, which a convolution sums over.

    On a CPU, a few devices at a time: XLA takes three times as long per feature if there are very
    many. One at a time for a convolution with batch groups, which XLA computes for all pairs of
    groups.
    """
    size, features = len(lhs), lhs.shape[1 + op.params["dimension_numbers"].lhs_spec[1]]
    limit = 1 if op.params["batch_group_count"] > 1 else max(1, FEATURES // max(1, features))
    at_once = max(k for k in range(1, size + 1) if size % k == 0 and k <= limit)
    if at_once == size or not on_host():
        return _conv_stacked(op, lhs, rhs)
    parts = [lax.reshape(x, (size // at_once, at_once, *x.shape[1:])) for x in (lhs, rhs)]
    start = lax.full(op.outs[0].shape, 0, wide(op.outs[0].dtype))
    return lax.scan(lambda sum, pair: (sum + _conv_stacked(op, *pair), None), start, parts)[0]


FEATURES = 64
"""The number of features to compute at a time on a CPU."""


def _conv_stacked(op: Leaf, lhs: Any, rhs: Any) -> Any:
    numbers = op.params["dimension_numbers"]
    lhs, rhs = (
        lax.collapse(jnp.moveaxis(widen(x), 0, dim), dim, dim + 2)
        for x, dim in ((lhs, numbers.lhs_spec[1]), (rhs, numbers.rhs_spec[1]))
    )
    params = op.params | {"preferred_element_type": wide(op.outs[0].dtype)}
    params.pop("out_sharding", None)
    return lax.conv_general_dilated(lhs, rhs, **params)


def _scatter_add(op: Leaf, zeros: Any, indices: Any, updates: Any) -> Any:
    """Turn the devices into further updates."""
    numbers = op.params["dimension_numbers"]
    return lax.scatter_add(
        widen(zeros),
        indices,
        widen(updates),
        numbers._replace(
            update_window_dims=_behind(numbers.update_window_dims),
            scatter_indices_batching_dims=_behind(numbers.scatter_indices_batching_dims),
        ),
        mode=op.params["mode"],
    )


RULES: dict[str, Callable[..., Any]] = {
    "dot_general": _dot,
    "conv_general_dilated": _conv,
    "scatter-add": _scatter_add,
}
