"""Derivatives: taken in the body, around the shard_map, and of the simulated function itself."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ...support import normal, vary
from ..table import program
from . import X3, X4, XY, XY_ODD


def ring(n, stop=None):
    return [(i, (i + 1) % n) for i in range(n)][:stop]


def linear_collectives(sizes):
    """Every collective that has a derivative, as a function of an `[n, n]` array."""
    n = sizes["x"]
    return {
        "psum": lambda x: lax.psum(x, "x"),
        "pmean": lambda x: lax.pmean(x, "x"),
        "all_gather": lambda x: lax.all_gather(x, "x", axis=1),
        "all_gather tiled": lambda x: lax.all_gather(x, "x", tiled=True),
        "psum_scatter": lambda x: lax.psum_scatter(x, "x"),
        "psum_scatter tiled": lambda x: lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True),
        "all_to_all": lambda x: lax.all_to_all(x, "x", 0, 1, tiled=True),
        "all_to_all whole": lambda x: lax.all_to_all(x, "x", 1, 1),
        "ppermute": lambda x: lax.ppermute(x, "x", ring(n)),
        "ppermute partial": lambda x: lax.ppermute(x, "x", ring(n, -1)),
        "pcast": lambda x: vary(x, ["y"]) if "y" in sizes else x * 1.0,
    }


@program(X3, args=lambda s: (normal(s["x"] ** 2, s["x"]),))
def derivatives_of_collectives_in_the_body(spmd, x):
    collectives = linear_collectives(spmd.sizes)

    def both(call, x):
        primal, tangent = jax.jvp(lambda x: call(jnp.sin(x)), (x,), (jnp.cos(3 * x),))
        gradient = jax.grad(lambda x: (call(jnp.sin(x)) ** 2).sum())(x)
        return [vary(r[None], spmd.axes) for r in (primal, tangent, gradient)]

    def body(x):
        return {name: both(call, x) for name, call in collectives.items()}

    return spmd(body, P("x"), P(spmd.axes))(x)


@program(XY, args=lambda s: (normal(s["x"] ** 2, s["x"]),))
def derivatives_of_collectives_around(spmd, x):
    collectives = linear_collectives(spmd.sizes)

    def run(x):
        def body(x):
            results = {name: call(jnp.sin(x)) for name, call in collectives.items()}
            return {name: vary(r[None], spmd.axes) for name, r in results.items()}

        return spmd(body, P("x"), P(spmd.axes))(x)

    primal, tangent = jax.jvp(run, (x,), (jnp.cos(3 * x),))
    gradient = jax.grad(lambda x: sum(jnp.tanh(r).sum() for r in run(x).values()))(x)
    return primal, tangent, gradient


def mlp(params, x):
    return jnp.tanh(x @ params["w"] + params["b"])


def data(sizes):
    params = {"w": normal(3, 2), "b": normal(2), "unused": normal(4)}
    return params, normal(12, 3), normal(12, 2)


@program(X4, XY, args=data)
def the_four_idioms_of_data_parallelism(spmd, params, x, y):
    def local(params, x, y):
        return jnp.mean((mlp(params, x) - y) ** 2)

    def body(params, x, y):
        gradient = jax.grad(local)(params, x, y)
        varying = vary(params, ["x"])
        return {
            "mean of gradients": lax.pmean(gradient, "x"),
            "gradient of mean": jax.grad(lambda p: lax.pmean(local(p, x, y), "x"))(params),
            "gradient alone": gradient,
            "of varying params": lax.pmean(jax.grad(local)(varying, x, y), "x"),
        }

    return spmd(body, (P(), P("x"), P("x")), P())(params, x, y)


@program(XY_ODD, args=data)
def gradient_around(spmd, params, x, y):
    def body(params, x, y):
        return lax.pmean(jnp.mean((mlp(params, x) - y) ** 2), "x")

    loss = spmd(body, (P(), P("x"), P("x")), P())
    return jax.value_and_grad(loss, argnums=(0, 1))(params, x, y)


def replicated(spmd, params, x, y):
    """A loss that with the check off differs between devices but claims not to."""

    def body(params, x, y):
        loss = jnp.mean((mlp(params, x) - y) ** 2)
        return lax.pmean(loss, "x") if spmd.check_vma else loss

    return spmd(body, (P(), P("x"), P("x")), P())(params, x, y)


@program(XY, args=data)
def gradient_around_an_output_that_differs(spmd, params, x, y):
    return jax.grad(partial(replicated, spmd))(params, x, y)


@program(X4, args=data, around=lambda f: jax.value_and_grad(f, argnums=(0, 2)))
def gradient_of_the_simulated(spmd, params, x, y):
    def body(params, x, y):
        return lax.pmean(jnp.mean((mlp(params, x) - y) ** 2), "x")

    return spmd(body, (P(), P("x"), P("x")), P())(params, x, y)


@program(XY, args=data, around=jax.grad)
def gradient_of_the_simulated_whose_output_differs(spmd, params, x, y):
    return replicated(spmd, params, x, y)


def wide(spmd, x, w):
    """A body with several collectives and an output that keeps its shards."""

    def body(x, w):
        full = lax.all_gather(w, "x", tiled=True)
        h = jnp.tanh(x @ full)
        shifted = lax.ppermute(h, "x", ring(spmd.sizes["x"]))
        return h * shifted + lax.psum(h, "x")

    return spmd(body, (P("x"), P("x")), P("x"))(x, w)


def wide_args(sizes):
    return normal(2 * sizes["x"], sizes["x"]), normal(sizes["x"], 2)


def _pushforward(f):
    return lambda x, w: jax.jvp(f, (x, w), (jnp.sin(x), jnp.cos(w)))


@program(XY, args=wide_args, around=_pushforward)
def jvp_of_the_simulated(spmd, x, w):
    return wide(spmd, x, w)


def _pullback(f):
    def run(x, w):
        out, pull = jax.vjp(f, x, w)
        return out, pull(jnp.cos(out))

    return run


@program(X4, args=wide_args, around=_pullback)
def vjp_of_the_simulated(spmd, x, w):
    return wide(spmd, x, w)


def _jacobians(f):
    return lambda x, w: (jax.jacfwd(f)(x, w), jax.jacrev(f, 1)(x, w))


@program(X3, args=wide_args, around=_jacobians)
def jacobians_of_the_simulated(spmd, x, w):
    return wide(spmd, x, w)


@program(X3, args=wide_args, around=lambda f: jax.hessian(f, argnums=1))
def hessian_of_the_simulated(spmd, x, w):
    def body(x, w):
        return lax.pmean(jnp.sum(jnp.tanh(x @ lax.all_gather(w, "x", tiled=True))), "x")

    return spmd(body, (P("x"), P("x")), P())(x, w)


@program(X3, args=wide_args, around=lambda f: lambda x, w: jax.linearize(f, x, w)[1](x, w))
def linearized_simulated(spmd, x, w):
    return wide(spmd, x, w)


@program(XY, args=wide_args)
def second_derivatives_in_the_body(spmd, x, w):
    def body(x, w):
        def loss(w):
            return lax.psum(jnp.sum(jnp.tanh(x @ lax.all_gather(w, "x", tiled=True))), "x")

        gradient = jax.grad(loss)(w)
        product = jax.jvp(jax.grad(loss), (w,), (w,))[1]
        return gradient, product, jax.jacrev(lambda w: lax.psum(w, "x"))(w)

    return spmd(body, (P("x"), P("x")), (P("x"), P("x"), P("x")))(x, w)


@program(X4, args=wide_args)
def derivatives_inside_and_around(spmd, x, w):
    def body(x, w):
        def loss(w):
            return jnp.sum(jnp.sin(x[:, :2] * w))

        return lax.psum(jax.grad(loss)(w), "x")

    run = spmd(body, (P("x"), P("x")), P())
    return jax.grad(lambda x, w: jnp.sum(run(x, w) ** 2), (0, 1))(x, w)


@program(X4, args=lambda s: (normal(8, 2), normal(2)))
def gradients_through_loops(spmd, x, w):
    def body(x, w):
        def step(carry, scale):
            carry = jnp.tanh(carry + scale * lax.pmean(x @ w * carry, "x"))
            return carry, carry**2

        start = vary(jnp.ones(x.shape[0]), ["x"]) * x[:, 0]
        last, seen = lax.scan(step, start, jnp.arange(1.0, 4.0))
        twice = lax.fori_loop(0, 2, lambda _, c: c * lax.psum(c, "x").mean(), last)
        return lax.pmean(jnp.sum(last * twice) + seen.sum(), "x")

    loss = spmd(body, (P("x"), P()), P())
    return jax.grad(loss, argnums=(0, 1))(x, w)


@program(XY, args=lambda s: (normal(8, 2), normal(2)), around=lambda f: jax.grad(f, argnums=(0, 1)))
def gradients_of_the_simulated_through_loops_and_branches(spmd, x, w):
    def body(x, w):
        def step(carry, scale):
            shared = lambda c: vary(lax.pmean(c, "x"), ["x"])  # noqa: E731
            total = lax.cond(scale > 1.5, shared, lambda c: 2 * c, carry)
            return carry * 0.5 + total, total.sum()

        last, seen = lax.scan(step, jnp.tanh(x * w), jnp.arange(1.0, 4.0))
        return lax.psum(last.sum() + seen.sum(), "x")

    return spmd(body, (P("x"), P()), P())(x, w)


@program(XY, args=lambda s: (normal(8, 2), normal(2)))
def custom_jvp_with_and_without_collectives(spmd, x, w):
    @jax.custom_jvp
    def soft(x):
        return jnp.log1p(jnp.exp(x))

    @soft.defjvp
    def _(primals, tangents):
        return soft(primals[0]), 3.0 * tangents[0] * jax.nn.sigmoid(primals[0])

    @jax.custom_jvp
    def mean(x):
        return lax.pmean(x, "x")

    @mean.defjvp
    def _(primals, tangents):
        return mean(primals[0]), 2.0 * lax.psum(tangents[0], "x")

    def body(x, w):
        value, gradient = jax.value_and_grad(lambda x: jnp.sum(soft(x * w) * mean(x)))(x)
        return vary(value[None], ["x"]), gradient, soft(x), mean(x)

    run = spmd(body, (P("x"), P()), (P("x"), P("x"), P("x"), P()))
    around = jax.grad(lambda x, w: sum(r.sum() for r in run(x, w)), (0, 1))(x, w)
    return run(x, w), around


@program(X4, args=lambda s: (normal(8, 2), normal(2)))
def custom_vjp_with_and_without_collectives(spmd, x, w):
    @jax.custom_vjp
    def scaled(x, w):
        return jnp.sin(x) * w

    def backward(saved, cotangent):
        x, w = saved
        return cotangent * 5.0, jnp.sum(cotangent * x, 0) * w

    scaled.defvjp(lambda x, w: (scaled(x, w), (x, w)), backward)

    @jax.custom_vjp
    def reduced(x):
        return lax.psum(x, "x")

    reduced.defvjp(lambda x: (reduced(x), x), lambda x, ct: (vary(ct, ["x"]) * jnp.cos(x),))

    def body(x, w):
        gradient = jax.grad(lambda x: jnp.sum(scaled(x, vary(w, ["x"])) ** 2) + reduced(x).sum())(x)
        return gradient, reduced(x), scaled(x, vary(w, ["x"]))

    run = spmd(body, (P("x"), P()), (P("x"), P(), P("x")))
    return run(x, w), jax.grad(lambda x: sum(r.sum() for r in run(x, w)))(x)


# The rule was traced with the types of the body: the simulated function still has to have it.
@program(X4, XY, args=lambda s: (normal(8, 2), normal(2)), around=jax.grad)
def custom_vjp_under_a_gradient_of_the_simulated(spmd, x, w):
    @jax.custom_vjp
    def clipped(x):
        return x * 1.0

    clipped.defvjp(lambda x: (x * 1.0, x), lambda x, ct: (ct * 0.1 + lax.pmean(x, "x"),))

    def body(x, w):
        h = clipped(jnp.tanh(x * w))
        return lax.pmean(jnp.sum(h**2), "x")

    return spmd(body, (P("x"), P()), P())(x, w)


@program(X4, args=data)
def remat_with_collectives(spmd, params, x, y):
    def layer(params, x):
        h = mlp(params, x)
        return h + lax.pmean(h, "x")

    def body(params, x, y):
        everything = jax.checkpoint(layer)
        dots = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)

        def loss(params):
            return lax.psum(jnp.sum((everything(params, x) * dots(params, x) - y) ** 2), "x")

        return jax.value_and_grad(loss)(params)

    around = spmd(lambda p, x, y: body(p, x, y)[0], (P(), P("x"), P("x")), P())
    inside = spmd(body, (P(), P("x"), P("x")), (P(), P()))(params, x, y)
    return inside, jax.grad(around)(params, x, y)


@program(X4, args=data, around=jax.grad)
def remat_around_the_shard_map(spmd, params, x, y):
    def body(params, x, y):
        return lax.pmean(jnp.mean((mlp(params, x) - y) ** 2), "x")

    return jax.checkpoint(spmd(body, (P(), P("x"), P("x")), P()))(params, x, y)


@program(XY, args=data)
def stopped_gradients(spmd, params, x, y):
    def body(params, x, y):
        def loss(params):
            largest = lax.pmax(lax.stop_gradient(mlp(params, x)), "x")
            return lax.psum(jnp.sum((mlp(params, x) - y) * largest), "x")

        return jax.grad(loss)(params)

    return spmd(body, (P(), P("x"), P("x")), P())(params, x, y)
