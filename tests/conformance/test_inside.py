"""A simulated function as a part of other programs: inside a real `shard_map`, under a rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_batching import custom_vmap
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import real_mesh

BODIES = {
    "a constant": lambda x: x + jnp.arange(2.0),
    "the number of the device": lambda x: x * lax.axis_index("a").astype(x.dtype),
    "a branch": lambda x: lax.cond(x.sum() > 3, lambda x: x * 2, lambda x: x, x),
    "a branch by device": lambda x: lax.switch(
        lax.axis_index("a"), [lambda x: x**2, lambda x: x**3], x
    ),
    "a gradient": lambda x: jax.grad(lambda x: lax.psum((x**3).sum(), "a"))(x),
    "a loop": lambda x: lax.fori_loop(0, 3, lambda _, c: jnp.sin(c) + lax.pmean(c.sum(), "a"), x),
    "all_gather": lambda x: lax.all_gather(x, "a", tiled=True) * x.sum(),
}

WAYS = {
    "as it is": lambda f: f,
    "jit": jax.jit,
    "grad": lambda f: jax.grad(lambda x: jnp.sin(f(x)).sum()),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),))[1],
    "hessian": lambda f: (
        lambda x: jax.jvp(jax.grad(lambda x: (f(x) ** 2).sum()), (x,), (jnp.cos(x),))[1]
    ),
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x]))[1],
}

X = jnp.arange(8.0) / 3


def simulated(body):
    def f(x, *, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=P("a"), out_specs=P("a"))(x)

    return sw.simulate(f, mesh=sw.mesh(a=2))


@pytest.mark.parametrize("outer", ["real", "simulated"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_inside_a_shard_map_that_checks(body, way, outer):
    """JAX types what differs between devices there, and those of the program are others."""
    inner = simulated(body)

    def program(x, *, mesh):
        return jax.shard_map(way(inner), mesh=mesh, in_specs=P("q"), out_specs=P("q"))(x)

    if outer == "real":
        got = program(X, mesh=real_mesh(q=2))
    else:
        got = sw.simulate(program, mesh=sw.mesh(q=2))(X)
    want = jnp.concatenate([way(inner)(part) for part in jnp.split(X, 2)])
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_the_derivative_around_such_a_shard_map():
    inner = simulated(BODIES["a branch by device"])
    halves = lambda x: jnp.concatenate([inner(part) for part in jnp.split(x, 2)])  # noqa: E731
    mapped = jax.shard_map(inner, mesh=real_mesh(q=2), in_specs=P("q"), out_specs=P("q"))
    got, want = (jax.grad(lambda x, f=f: jnp.sin(f(x)).sum())(X) for f in (mapped, halves))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_an_argument_that_is_the_same_on_every_device_has_the_sum_of_the_gradients():
    def f(w, x, *, mesh):
        body = lambda w, x: lax.psum((w * x).sum(), "a")  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("a")), out_specs=P())(w, x)

    inner = sw.simulate(f, mesh=sw.mesh(a=2))

    def loss(w):
        body = lambda w, x: lax.psum(inner(w, x), "q")  # noqa: E731
        specs = {"in_specs": (P(), P("q")), "out_specs": P()}
        return jax.shard_map(body, mesh=real_mesh(q=2), **specs)(w, X)

    np.testing.assert_allclose(jax.grad(loss)(2.0), X.sum(), rtol=1e-6)


RULES = {
    "custom_vjp": lambda g: _with(jax.custom_vjp(g), "defvjp", *_pulled(g)),
    "custom_jvp": lambda g: _with(jax.custom_jvp(g), "defjvp", lambda p, t: jax.jvp(g, p, t)),
    "custom_vmap": lambda g: _with(
        custom_vmap(g), "def_vmap", lambda size, batched, x: (jax.vmap(g)(x), True)
    ),
}


def _with(made, define, *rules):
    getattr(made, define)(*rules)
    return made


def _pulled(g):
    return lambda x: jax.vjp(g, x), lambda pull, cotangent: pull(cotangent)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_of_the_users_own_for_it(rule):
    """JAX puts the arguments of such a function in their places, and the mesh is none of them."""
    g = simulated(BODIES["all_gather"])
    h = rule(g)
    for way in (lambda f: f, jax.vmap) if rule is RULES["custom_vmap"] else (lambda f: f, jax.grad):
        of = lambda f, way=way: way(lambda x: f(x).sum())  # noqa: E731
        x = jnp.stack([X, 2 * X]) if way is jax.vmap else X
        np.testing.assert_allclose(of(h)(x), of(g)(x), rtol=1e-6)


def test_its_mesh_may_be_named_again():
    g = simulated(BODIES["a constant"])
    np.testing.assert_array_equal(g(X[:4], mesh=sw.mesh(a=2)), g(X[:4]))
    with pytest.raises(sw.ShardingError, match="was created for"):
        g(X[:4], mesh=sw.mesh(a=4))


def test_a_rule_inside_it_with_a_larger_mesh_around():
    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))
    g = simulated(square)
    with jax.set_mesh(real_mesh(d=8)):
        np.testing.assert_array_equal(jax.grad(lambda x: g(x).sum())(X), 2 * X)
        got = jax.vmap(jax.grad(lambda x: jax.checkpoint(g)(x).sum()))(X.reshape(1, 8))
    np.testing.assert_array_equal(got[0], 2 * X)


def test_the_transpose_of_the_results_that_are_linear():
    """The others are not used, and need not be linear."""

    def f(x, *, mesh):
        specs = {"in_specs": P("a"), "out_specs": P("a")}
        return jax.shard_map(lambda x: (2 * x, jnp.sin(x)), mesh=mesh, **specs)(x)

    g = sw.simulate(f, mesh=sw.mesh(a=4))
    (got,) = jax.linear_transpose(lambda x: g(x)[0], X)(X)
    np.testing.assert_array_equal(got, 2 * X)
    solved = lax.custom_linear_solve(
        lambda x: g(x)[0], X, lambda _, b: b / 2, transpose_solve=lambda _, b: b / 2
    )
    np.testing.assert_array_equal(solved, X / 2)


@pytest.mark.parametrize("beside", [False, True])
def test_a_shape_as_a_result_is_told(beside):
    def f(x, *, mesh):
        shape = jax.ShapeDtypeStruct((2,), jnp.float32)
        return (x, shape) if beside else shape

    for run in (
        lambda: sw.simulate(f, mesh=sw.mesh(a=2))(X),
        lambda: sw.check(f, X, mesh={"a": [1, 2]}),
    ):
        with pytest.raises(sw.ShardingError, match=r"the function returns a jax.ShapeDtypeStruct"):
            run()
