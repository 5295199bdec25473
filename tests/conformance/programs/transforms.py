"""vmap and jit, in the body, around the shard_map and around the simulated function."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ...support import normal, vary
from ..table import program
from . import X3, X4, XY


def everything(n):
    """A function of an `[n]` array that uses every kind of collective."""

    def call(row):
        total = lax.psum(row, "x")
        gathered = lax.all_gather(row, "x", tiled=True)
        scattered = lax.psum_scatter(jnp.sin(row), "x", tiled=True)
        exchanged = lax.all_to_all(row, "x", 0, 0, tiled=True)
        shifted = lax.ppermute(row, "x", [(i, (i + 1) % n) for i in range(n - 1)])
        own = row * (1 + lax.axis_index("x")).astype(row.dtype)
        return total + exchanged * shifted + own + gathered.mean() + scattered.sum()

    return call


@program(X3, args=lambda s: (normal(2 * s["x"], s["x"]),))
def vmap_in_the_body(spmd, x):
    call = everything(spmd.sizes["x"])

    def body(x):
        rows = jax.vmap(call)(x)
        columns = jax.vmap(call, in_axes=1, out_axes=1)(jnp.concatenate([x] * spmd.sizes["x"]))
        nested = jax.vmap(jax.vmap(call))(jnp.stack([x, jnp.cos(x)]))
        gradients = jax.vmap(jax.grad(lambda r: call(r).sum()))(x)
        return rows, columns, nested.sum(0), gradients

    return spmd(body, P("x"), P("x"))(x)


@program(X4, args=lambda s: (normal(8, 2), normal(2)))
def vmapped_control_flow_in_the_body(spmd, x, w):
    def body(x, w):
        def row(row, flag):
            def step(c, _):
                return c + lax.pmean(jnp.sin(c), "x"), None

            looped, _ = lax.scan(step, row, None, length=2)
            branched = lax.cond(flag, lambda r: vary(lax.psum(r, "x"), ["x"]), jnp.sin, row)
            own = lax.while_loop(lambda v: jnp.abs(v).max() > 0.3, lambda v: v * 0.5, row)
            return looped + branched * w, own

        return jax.vmap(row)(x, jnp.arange(x.shape[0]) % 2 == 0)

    return spmd(body, (P("x"), P()), P("x"))(x, w)


# With the check on, JAX itself stumbles over the named axis of a vmap.
@program(X4, args=lambda s: (normal(8, 2),), checks=(False,))
def vmap_with_an_axis_name_in_the_body(spmd, x):
    def body(x):
        def row(r):
            inner = lax.psum(r, "rows") + lax.axis_index("rows").astype(r.dtype)
            return inner + r * lax.pmean(r, "x"), lax.pmax(r, "rows")

        return jax.vmap(row, axis_name="rows")(x)

    return spmd(body, P("x"), P("x"))(x)


def mean_loss(spmd, w, x):
    def body(w, x):
        h = jnp.tanh(x @ w)
        return lax.pmean(h.mean(), "x"), h, lax.psum(h.sum(0), "x")

    return spmd(body, (P(), P("x")), (P(), P("x"), P()))(w, x)


@program(XY, args=lambda s: (normal(3, 2), normal(5, 8, 3)))
def vmap_around_the_shard_map(spmd, w, x):
    return jax.vmap(partial(mean_loss, spmd), in_axes=(None, 0))(w, x)


@program(
    X4,
    XY,
    args=lambda s: (normal(5, 3, 2), normal(8, 3)),
    around=lambda f: jax.vmap(f, in_axes=(0, None), out_axes=(0, 1, 0)),
)
def vmap_of_the_simulated(spmd, w, x):
    return mean_loss(spmd, w, x)


def _gradients_for_each(f):
    return jax.vmap(jax.grad(lambda w, x: sum(jnp.sum(r**2) for r in f(w, x))), in_axes=(0, None))


@program(X4, args=lambda s: (normal(5, 3, 2), normal(8, 3)), around=_gradients_for_each)
def vmap_of_gradients_of_the_simulated(spmd, w, x):
    return mean_loss(spmd, w, x)


# A partial permutation and a gather over two axes are what a vmap of the body could not do.
@program(XY, args=lambda s: (normal(3, 16, 2),), around=jax.vmap)
def vmap_of_the_simulated_with_every_kind(spmd, x):
    def body(x):
        partial_ring = lax.ppermute(x, "x", [(0, 1), (2, 0)])
        gathered = lax.all_gather(x, ("y", "x"), tiled=True)
        chosen = lax.cond(
            lax.psum(x.sum(), ("x", "y")) > 0,
            lambda x: vary(lax.pmean(x, "x"), ["x"]),
            jnp.sin,
            x,
        )
        return partial_ring, gathered.sum(0, keepdims=True), chosen

    return spmd(body, P(("x", "y")), P(("x", "y")))(x)


@program(X4, XY, args=lambda s: (normal(3, 2), normal(8, 3)))
def jit_in_the_body_and_around(spmd, w, x):
    @jax.jit
    def layer(w, x):
        return jnp.tanh(x @ w)

    @partial(jax.jit, static_argnames="power")
    def shared(h, power):
        return lax.psum(layer(jnp.eye(2), h) ** power, "x")

    def body(w, x):
        h = layer(w, x)
        return jax.jit(lambda h: jnp.sin(h))(h), shared(h, power=2), shared(h, power=3)

    outs = (P("x"), P(), P())
    return jax.jit(spmd(jax.jit(body), (P(), P("x")), outs))(w, x), layer(w, x)


@program(X4, args=lambda s: (normal(3, 2), normal(8, 3)))
def everything_around_at_once(spmd, w, x):
    """jit of vmap of grad of remat of a shard_map with a scan that has a collective inside."""

    def body(w, x):
        def step(carry, row):
            return jnp.tanh(carry + lax.pmean(row @ w, "x")), None

        return lax.scan(step, jnp.zeros(2), x)[0].sum()

    loss = jax.checkpoint(spmd(body, (P(), P("x")), P()))
    gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))
    return jax.jit(gradients)(w, jnp.stack([x, 2 * x]))


def _named(f):
    return jax.vmap(f, axis_name="i")


def batch(sizes):
    return (normal(3, 2 * sizes["x"]),)


@program(X3, args=batch, around=_named)
def a_named_vmap_around_the_simulated(spmd, x):
    total = spmd(lambda x: lax.psum(jnp.sin(x), "x"), P("x"), P())(x)
    own = lax.axis_index("i").astype(x.dtype)
    return lax.psum(total * own, "i") + lax.pmax(x.sum(), "i"), lax.all_gather(total, "i")


def _inside(spmd, x):
    def body(x):
        ring = [(0, 1), (1, 2), (2, 0)]
        both = lax.psum(jnp.sin(x), ("i", "x")) * lax.psum(x * x, "i")
        return both + lax.ppermute(x, "i", ring) * lax.axis_index("i").astype(x.dtype)

    return spmd(body, P("x"), P("x"))(x)


@program(X3, args=batch, checks=(False,), around=_named)
def a_named_vmap_used_in_the_body(spmd, x):
    return _inside(spmd, x)


@program(
    X3,
    args=batch,
    checks=(False,),
    around=lambda f: (
        lambda x: (
            _named(jax.grad(lambda x: jnp.sum(f(x) ** 2)))(x),
            jax.grad(lambda x: jnp.sum(_named(f)(x) ** 2))(x),
        )
    ),
)
def gradients_inside_and_around_a_named_vmap(spmd, x):
    return _inside(spmd, x)


@program(
    X4,
    args=lambda s: (normal(8), normal(3)),
    around=lambda f: lambda x, y: jax.vmap(lambda y: f(x, y), axis_name="i")(y),
)
def a_named_vmap_that_batches_nothing_of_the_simulated(spmd, x, y):
    del y
    return lax.psum(spmd(lambda x: lax.psum(x, "x"), P("x"), P())(x), "i")
