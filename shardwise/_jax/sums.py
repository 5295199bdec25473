"""The sum of a stack, row by row where XLA itself is slow at it.

With JAX 0.10, XLA on a CPU takes twenty to sixty times as long as an addition of the rows if they
are longer than some 16,000 numbers (`benchmarks/workarounds.py`); since 0.11 it is as fast.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

SLOW = jax.__version_info__ < (0, 11)
LONG = 1 << 14
IN_A_TURN = 8


def sum_stack(x: Any) -> Any:
    """The sum over the first dimension, of which there is one at least."""
    if not SLOW or x[0].size <= LONG or jax.default_backend() != "cpu":
        return lax.reduce_sum(x, (0,))
    first = len(x) % IN_A_TURN or IN_A_TURN

    def turn(index: Any, total: Any) -> Any:
        for offset in range(IN_A_TURN):
            row = first + IN_A_TURN * index + offset
            total = total + lax.dynamic_index_in_dim(x, row, keepdims=False)
        return total

    total = x[0]
    for row in range(1, first):
        total = total + x[row]
    return lax.fori_loop(0, (len(x) - first) // IN_A_TURN, turn, total)
