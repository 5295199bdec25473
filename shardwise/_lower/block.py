"""Sums over the devices of a block, which are computed at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._collectives import widen
from .plan import BlockSum, Product


def merged(product: Product, lhs: Any, rhs: Any) -> Any:
    """The sum of the products of all devices of a block, stacked in front, as one product."""
    params = product.dot.params
    (lc, rc), (lb, rb) = params["dimension_numbers"]
    numbers = (
        ((0, *(d + 1 for d in lc)), (0, *(d + 1 for d in rc))),
        (tuple(d + 1 for d in lb), tuple(d + 1 for d in rb)),
    )
    return lax.dot_general(
        lhs,
        rhs,
        numbers,
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )


def after(product: Product, out: Any) -> Any:
    """What is done to a product before it is summed."""
    for op in product.after:
        (out,) = op.run(out)
    return out


def sum_block(op: BlockSum, arrays: Sequence[Any], block: str | None) -> Any:
    """The sum over the `vmap` named `block`; without one, what the device itself has."""
    if op.product is None:
        (array,) = arrays
        return array if block is None else _sum(widen(array), block)
    if block is None:
        (out,) = op.product.dot.run(*arrays)
        return after(op.product, out)
    return widen(after(op.product, _dot(op.product)(*arrays)))


def _sum(x: Any, block: str) -> Any:
    """A sum over the devices of a block: one of a dimension, once the `vmap` is done.

    JAX 0.12 cannot lower what becomes of a `psum` there if the types say how arrays lie.
    """
    if x.dtype == jnp.bool_:
        return lax.psum(x, block)
    return lax.reduce_sum(lax.all_gather(x, block), (0,))


def _dot(product: Product) -> Any:
    """The product of one device that becomes, under `vmap`, the sum of those of all."""

    @jax.custom_batching.custom_vmap
    def dot(lhs: Any, rhs: Any) -> Any:
        (out,) = product.dot.run(lhs, rhs)
        return out

    @dot.def_vmap
    def all_at_once(size: int, batched: Any, lhs: Any, rhs: Any) -> Any:
        def stack(x: Any, along: bool) -> Any:
            return x if along else jnp.broadcast_to(x, (size, *x.shape))

        return merged(product, *map(stack, (lhs, rhs), batched)), False

    return dot
