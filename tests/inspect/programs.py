"""Programs to look at. Their lines are named in the tests by a comment at the end of the line."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import P, lax


def line_of(function: Callable, mark: str) -> int:
    """The number of the line that ends in `# mark`."""
    lines, first = inspect.getsourcelines(function)
    (found,) = (i for i, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))
    return first + found


def norm(x, w, *, mesh):
    def body(part, w):
        scaled = part * w  # scaled
        squares = jnp.sum(scaled**2)  # squares
        total = lax.psum(squares, "data")  # total
        return scaled / jnp.sqrt(total)  # result

    specs = (P("data"), P())
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("data"))(x, w)


def steps_of_norm(x, w, *, mesh):
    """The values on the way to `norm`, each device's beside the others'."""

    def body(part, w):
        scaled = part * w
        squares = jnp.sum(scaled**2)
        total = lax.psum(squares, "data")
        return scaled[None], squares[None], lax.pcast(total, "data", to="varying")[None]

    specs = (P("data"), P())
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("data"))(x, w)


def ring(x, *, mesh):
    n = mesh.shape["data"]

    def body(part):
        def turn(carry, _):
            moved = lax.ppermute(carry, "data", [(i, (i + 1) % n) for i in range(n)])  # moved
            return moved, moved.sum()

        last, sums = lax.scan(turn, part, None, length=12)
        return last + sums[-1]

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


def branches(x, *, mesh):
    def body(part):
        odd = lax.axis_index("data") % 2
        return lax.cond(odd == 1, lambda p: p * 10, lambda p: -p, part)

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


def stuck(x, *, mesh):
    def body(part):
        before = part * 2  # before
        first = lax.axis_index("data") == 0
        after = lax.cond(first, lambda p: lax.psum(p, "data"), lambda p: p, before)
        return after + 1  # after

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)(
        x
    )


def grid(x, *, mesh):
    def body(part):
        rows = lax.psum(part, "model")  # rows
        return lax.psum(rows.sum(), "data")

    return jax.shard_map(body, mesh=mesh, in_specs=P("data", "model"), out_specs=P())(x)


def descends(w, x, *, mesh):
    def body(w, x):
        return jax.grad(lambda w: lax.pmean(jnp.mean((x @ w) ** 2), "data"))(w)

    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)


def counts_down(x, *, mesh):
    def body(part):
        def go(state):
            return state[0] > 0

        def turn(state):
            left, value = state
            halved = value / 2  # halved
            return left - 1, halved

        return lax.while_loop(go, turn, (3, part))[1]

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)
