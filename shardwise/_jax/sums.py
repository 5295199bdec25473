"""Sum a stack, row by row where XLA itself is slow or wrong.

With JAX 0.10, XLA on a CPU takes many times as long as adding the rows one by one if they have more
than about 16,000 elements (`benchmarks/workarounds.py`); since 0.11 it is as fast. If the rows are
products with a constant matrix, as in `jnp.sum(x @ jnp.ones((4, 1000)), 0)`, its sum is wrong, at
least up to JAX 0.12.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

SLOW = jax.__version_info__ < (0, 11)
LONG = 1 << 14
ROWS_PER_ITERATION = 8


def sum_stack(x: Any) -> Any:
    """Sum over the first dimension, which is not empty."""
    slow = SLOW and math.prod(x.shape[1:]) > LONG
    return sum_products(x) if slow else lax.reduce_sum(x, (0,))


def sum_products(x: Any) -> Any:
    """Sum over the first dimension of a value that may be a matrix product."""
    if jnp.iscomplexobj(x) or jax.default_backend() != "cpu":
        return lax.reduce_sum(x, (0,))
    first = len(x) % ROWS_PER_ITERATION or ROWS_PER_ITERATION

    def add_rows(index: Any, total: Any) -> Any:
        for offset in range(ROWS_PER_ITERATION):
            row = first + ROWS_PER_ITERATION * index + offset
            total = total + lax.dynamic_index_in_dim(x, row, keepdims=False)
        return total

    total = x[0]
    for row in range(1, first):
        total = total + x[row]
    if len(x) > first:
        total = lax.fori_loop(0, (len(x) - first) // ROWS_PER_ITERATION, add_rows, total)
    zero = lax.full_like(total, 0)  # like a sum that starts from 0, which is never -0
    return lax.select(total == zero, zero, total)
