"""Operations that JAX makes of others when it compiles: they hold functions, or types, of the body.

Applied outside the `shard_map` that they were traced in, they ask for its axes.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ...support import normal
from ..table import program
from . import X4


def root_of(f, start):
    """A root found by Newton's method, with the derivative of implicit functions."""

    def solve(f, y):
        slope = jax.grad(lambda y: f(y).sum())
        return lax.fori_loop(0, 8, lambda _, y: y - f(y) / slope(y), jnp.abs(y) + 1)

    def tangent_solve(g, y):
        return y / g(jnp.ones_like(y))

    return lax.custom_root(f, start, solve, tangent_solve)


@program(X4, args=lambda s: (normal(8, 3),))
def roots(spmd, x):
    def body(x):
        own = root_of(lambda y: y * y - x * x - 1, x)
        total = lax.psum(x * x, "x")
        shared = root_of(lambda y: y * y - total - x * x, x)
        return own * shared

    return spmd(body, P("x"), P("x"))(x)


def _gradient(f):
    return jax.grad(lambda x: f(x).sum())


@program(X4, args=lambda s: (normal(8, 3),), around=_gradient)
def gradients_of_roots_that_some_devices_look_for(spmd, x):
    def body(x):
        def looking(x):
            return root_of(lambda y: y * y - x * x - 1, x)

        once = lax.cond(lax.axis_index("x") > 1, looking, jnp.sin, x)
        return lax.scan(lambda c, _: (looking(c), None), once, None, length=2)[0]

    return spmd(body, P("x"), P("x"))(x)


@program(X4, args=lambda s: (normal(2, 8, 3),), around=jax.vmap)
def a_batch_of_places_in_sorted_rows(spmd, x):
    def body(x):
        places = jax.vmap(lambda row: jnp.searchsorted(jnp.sort(row), row, side="right"))(x)
        counts = jnp.histogram(x, bins=jnp.linspace(-2.0, 2.0, 5))[0]
        return places, lax.psum(counts, "x")

    return spmd(body, P("x"), (P("x"), P()))(x)
