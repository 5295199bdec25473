"""A `shard_map` inside one that is manual over some of the axes."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import assert_same, normal, real_mesh

X4 = {"x": 4}


def body(w, x):
    return lax.pmean(jnp.sum(jnp.tanh(x * w)), "x")


def loss(w, x, *, mesh):
    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())(w, x)


@pytest.fixture
def data():
    return normal(3), normal(8, 3)


@pytest.fixture
def want(data):
    return jax.device_get(jax.jit(partial(loss, mesh=real_mesh(**X4)))(*data))


@pytest.fixture
def slope(data):
    return jax.device_get(jax.jit(jax.grad(partial(loss, mesh=real_mesh(**X4))))(*data))


# --- shard_maps inside partly manual ones


def nested(x, *, mesh):
    def inner(x):
        return lax.psum(jnp.sin(x) * lax.psum(x.sum(), "y"), "y")

    def outer(x):
        y = jax.shard_map(inner, in_specs=P("y"), out_specs=P(), axis_names={"y"})(x)
        return lax.psum(y * y.sum(), "x")

    return jax.shard_map(outer, mesh=mesh, in_specs=P("x"), out_specs=P(), axis_names={"x"})(x)


@pytest.mark.parametrize("jit", [False, True], ids=["", "jit"])
def test_a_forward_derivative_of_nested_shard_maps(jit):
    x, sizes = normal(8), {"x": 2, "y": 2}

    def push(f):
        return lambda x: jax.jvp(f, (x,), (jnp.cos(x),))

    want = jax.device_get(jax.jit(push(partial(nested, mesh=real_mesh(**sizes))))(x))
    call = push(sw.simulate(nested, mesh=sw.mesh(**sizes)))
    assert_same((jax.jit(call) if jit else call)(x), want)


def test_a_backward_derivative_of_nested_shard_maps_is_refused_by_name():
    call = sw.simulate(nested, mesh=sw.mesh(x=2, y=2))
    with pytest.raises(sw.UnsupportedError, match=r"names mesh axis 'x'.*the outer one has taken"):
        jax.grad(lambda x: call(x).sum())(normal(8))


def test_a_backward_derivative_of_nested_shard_maps_over_one_device():
    """An axis of size 1 may be named again: there is nothing to split, and JAX runs it."""
    x, sizes = normal(4), {"x": 1, "y": 2}

    def stacked(x, *, mesh):
        def inner(x):
            return lax.scan(lambda c, _: (c, x), jnp.sum(x) * 0, jnp.arange(3))[1].mean(0)

        def outer(x):
            return jax.shard_map(inner, in_specs=P(), out_specs=P(), axis_names={"y"})(x)

        specs = {"in_specs": P("x"), "out_specs": P("x"), "axis_names": {"x"}}
        return jax.shard_map(outer, mesh=mesh, **specs)(x)

    def slope(f):
        return jax.grad(lambda x: (f(x) ** 2).sum())

    want = jax.device_get(jax.jit(slope(jax.jit(partial(stacked, mesh=real_mesh(**sizes)))))(x))
    assert_same(slope(sw.simulate(stacked, mesh=sw.mesh(**sizes)))(x), want)


def test_a_derivative_of_nested_shard_maps_that_writes_what_nobody_needs():
    """JAX writes specs that it refuses, and drops them as dead before it looks at them."""

    def program(x, y, *, mesh):
        def inner(x, y):
            here = lax.axis_index(("y", "x")).astype(jnp.float32)
            return jnp.stack([jnp.mean(x * 0.5), jnp.mean(y), here])

        def outer(x, y):
            specs = {"in_specs": (P(), P(None, "y")), "out_specs": P("y")}
            return jax.shard_map(inner, axis_names={"y"}, **specs)(x, y)

        specs = {"in_specs": (P(), P(None, "x")), "out_specs": P("x")}
        call = jax.shard_map(outer, mesh=mesh, axis_names={"x"}, **specs)
        return jax.hessian(lambda x: jnp.sum(call(x, y)))(x)

    x, y = normal(3), normal(2, 8)
    sizes = {"x": 2, "y": 2}
    want = jax.jit(partial(program, mesh=real_mesh(**sizes)))(x, y)
    assert_same(sw.simulate(program, mesh=sw.mesh(**sizes))(x, y), want)


@pytest.mark.parametrize(
    "refused",
    [
        lambda x: lax.psum_scatter(x > 0, "d", tiled=True),
        lambda x: lax.ppermute(x, "d", [(0, 99)]),
        lambda x: lax.ppermute(x, "d", [(0, 1), (0, 2)]),
    ],
)
def test_what_jax_refuses_and_nothing_needs(refused):
    """Under `jit` JAX has dropped it before it would refuse it."""

    def program(needed, x, *, mesh):
        def body(x):
            found = refused(x)
            return lax.psum(x, "d"), found if needed else x

        return jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=(P(), P("d")))(x)

    x = jnp.arange(64.0)
    native = jax.jit(partial(program, False, mesh=real_mesh(d=8)))(x)
    ours = sw.simulate(partial(program, False), mesh=sw.mesh(d=8))(x)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, native, ours))
    explained = sw.explain(partial(program, False), x, mesh=sw.mesh(d=8))
    assert [one.name for one in explained.collectives] == ["psum"]
    with pytest.raises(sw.ShardingError):
        sw.simulate(partial(program, True), mesh=sw.mesh(d=8))(x)


def test_a_batch_of_derivatives_without_what_nothing_comes_of():
    """JAX cannot batch an exchange in groups, and has dropped it as dead by then."""

    def program(x, *, mesh):
        def body(x):
            parts = jnp.stack([x, 2 * x])
            lax.all_to_all(parts, "x", 0, 0, axis_index_groups=[[0, 1], [2, 3]])
            return jnp.sin(x)

        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)

    def gradients(f):
        return jax.jit(jax.vmap(jax.grad(lambda x: jnp.sum(f(x) ** 2))))

    xs = normal(3, 8)
    want = gradients(jax.jit(partial(program, mesh=real_mesh(x=4))))(xs)
    assert_same(gradients(sw.simulate(program, mesh=sw.mesh(x=4)))(xs), want)
