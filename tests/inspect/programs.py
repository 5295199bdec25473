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


def predicted(w, x):
    h = jnp.tanh(x @ w["a"])  # hidden
    return h @ w["b"]  # predicted


def learns(w, x, y, rate, unused, *, mesh):
    """A step with the gradient inside."""

    def step(w, x, y, rate, unused):
        def loss(w):
            error = predicted(w, x) - y  # error
            return lax.pmean(jnp.mean(error**2), "data")  # loss

        value, grads = jax.value_and_grad(loss)(w)  # asked
        new = jax.tree.map(lambda a, g: a - rate * g, w, grads)  # new
        return new, value

    specs = (P(), P("data"), P("data"), P(), P())
    return jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P())(w, x, y, rate, unused)


def learns_around(w, x, y, rate, *, mesh):
    """A step with the gradient around, and the loss once more with the new parameters."""

    def per_device(w, x, y):
        error = predicted(w, x) - y
        return lax.pmean(jnp.mean(error**2), "data")

    specs = (P(), P("data"), P("data"))
    loss = jax.shard_map(per_device, mesh=mesh, in_specs=specs, out_specs=P())
    value, grads = jax.value_and_grad(loss)(w, x, y)  # asked
    new = jax.tree.map(lambda a, g: a - rate * g, w, grads)  # new
    after = loss(new, x, y)  # after
    return new, value, after


def averages_twice(w, x, *, mesh):
    """The textbook mistake: the gradient is summed by autodiff, and then averaged."""

    def step(w, x):
        def loss(w):
            error = x @ w
            return jnp.mean(error**2)  # loss

        grads = lax.pmean(jax.grad(loss)(w), "data")  # asked
        return w - 0.1 * grads

    return jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)


def learns_in_a_loop(w, x, *, mesh):
    def steps(w, x):
        def step(w, _):
            value, slope = jax.value_and_grad(lambda w: lax.pmean(jnp.mean((x @ w) ** 2), "data"))(
                w
            )
            return w - 0.1 * slope, value

        return lax.scan(step, w, None, length=3)

    return jax.shard_map(steps, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)


def deep(ws, x, *, mesh):
    def body(ws, x):
        def loss(ws):
            h = x
            for w in ws:
                h = h + jax.nn.relu(2 * (h @ w))  # layer
            return lax.pmean(jnp.mean(h**2), "data"), lax.psum(h.sum(), "data")

        grads, total = jax.grad(loss, has_aux=True)(ws)  # asked
        return grads, total

    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(ws, x)


def bends(w, x, *, mesh):
    """A derivative of a derivative."""

    def body(w, x):
        def steepness(w):
            slope = jax.grad(lambda w: lax.pmean(jnp.mean(jnp.sin(x @ w)), "data"))(w)
            return jnp.sum(slope**2)

        bend = jax.grad(steepness)(w)
        return -bend

    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)


def scanned(ws, x, *, mesh):
    """Layers whose parameters are gathered, and which are computed again on the way back."""

    def body(ws, x):
        @jax.checkpoint
        def layer(h, w):
            out = jnp.tanh(h @ lax.all_gather(w, "data", tiled=True))  # layer
            return out, None

        def loss(ws):
            h, _ = lax.scan(layer, x, ws)
            return lax.pmean(jnp.mean(h**2), "data")

        value, slope = jax.value_and_grad(loss)(ws)
        return slope, value

    rows = P(None, "data")
    specs = (rows, P("data"))
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(rows, P()))(ws, x)


def two_slopes(a, b, x, *, mesh):
    def body(a, b, x):
        def loss(a, b):
            return lax.pmean(jnp.mean((x @ a) * b), "data")

        by_a, by_b = jax.grad(loss, argnums=(0, 1))(a, b)
        return by_a, by_b

    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P(), P("data")), out_specs=P())(a, b, x)


def whole_and_near(whole, near, none, *, mesh):
    """Each device's own, of numbers that are hard to tell apart, and nothing of an empty array."""

    def body(whole, near, none):
        return whole, near * 2, none

    spec = P("data")
    return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(whole, near, none)
