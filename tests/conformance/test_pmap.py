"""`jax.pmap`: over as many virtual devices as its arguments ask for."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shardwise as sw

from ..support import assert_same, normal

X = normal(8, 3)
ONE = jax.devices()[:1]


def normalised(pmap):
    return pmap(lambda x: x / lax.psum(x, "i"), axis_name="i")


def mapped_in_part(pmap):
    def body(x, w):
        return x * w, lax.pmean(jnp.sum(x * w), "i")

    f = pmap(body, axis_name="i", in_axes=(0, None), out_axes=(0, None))
    return lambda x: f(x, x[0])


def another_dimension(pmap):
    f = pmap(lambda x: x * lax.axis_size("i"), axis_name="i", in_axes=1, out_axes=1)
    return lambda x: f(x.T)


def without_a_name(pmap):
    return pmap(jnp.sin)


def trees_and_keywords(pmap):
    def body(tree, *, scale):
        return jax.tree.map(lambda v: lax.all_gather(v, "i").sum(0) * scale, tree)

    f = pmap(body, axis_name="i")
    return lambda x: f({"a": x, "b": [x * 2]}, scale=x)


def static(pmap):
    f = pmap(lambda x, n: lax.pmean(x**n, "i"), axis_name="i", static_broadcasted_argnums=1)
    return lambda x: f(x, 3)


def gradients_averaged(pmap):
    def step(w, x):
        slope = jax.grad(lambda w: jnp.sum((x * w) ** 2))(w)
        return w - 0.1 * lax.pmean(slope, "batch")

    f = pmap(step, axis_name="batch", in_axes=(None, 0))
    return lambda x: f(x[0], x)


def permuted(pmap):
    ring = [(k, (k + 1) % 8) for k in range(8)]
    return pmap(lambda x: lax.ppermute(x, "i", ring), axis_name="i")


def in_groups(pmap):
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    return pmap(lambda x: lax.psum(x, "i", axis_index_groups=groups), axis_name="i")


def under_jit_and_grad(pmap):
    f = normalised(pmap)
    return jax.jit(jax.grad(lambda x: jnp.sum(f(x) * jnp.arange(3.0) ** 2)))


PROGRAMS = [
    normalised,
    mapped_in_part,
    another_dimension,
    without_a_name,
    trees_and_keywords,
    static,
    gradients_averaged,
    permuted,
    in_groups,
    under_jit_and_grad,
]


@pytest.mark.parametrize("at_once", [1, "auto"])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_on_one_device(make, at_once):
    one = make(partial(jax.pmap, devices=ONE))
    want = jax.device_get(make(jax.pmap)(X))
    assert_same(sw.simulate(one, at_once=at_once)(X), want)


def test_more_devices_than_there_are():
    f = jax.pmap(lambda x: lax.psum(x, "i"), axis_name="i")
    x = normal(64, 2)
    assert_same(sw.simulate(f)(x), np.broadcast_to(x.sum(0), x.shape))


@pytest.mark.parametrize("name", ["i", "other"])
def test_with_a_mesh_of_the_same_size_or_of_another_name(name):
    got = sw.simulate(normalised(jax.pmap), mesh={name: 8})(X)
    assert_same(got, jax.device_get(normalised(jax.pmap)(X)))


@pytest.mark.parametrize("devices", [None, ONE])
def test_a_mesh_of_another_size_is_refused(devices):
    f = normalised(partial(jax.pmap, devices=devices))
    for call in (
        lambda: sw.simulate(f, mesh={"i": 4})(X),
        lambda: sw.check(f, X, mesh={"i": [2, 4]}),
        lambda: sw.explain(f, X, mesh={"i": 4}),
    ):
        with pytest.raises(sw.ShardingError, match="8 parts along 'i', and the mesh has"):
            call()


def test_parts_that_are_not_as_many_are_told():
    f = jax.pmap(lambda x, y: x + jnp.sum(y))
    with pytest.raises(sw.ShardingError, match="arrays of 4, 8 parts"):
        sw.simulate(f)(X[:4], X)
    with pytest.raises(sw.ShardingError, match="from the end"):
        sw.simulate(jax.pmap(jnp.sin, in_axes=-1))(X)


def test_derivative_of_the_simulated_function():
    one = normalised(partial(jax.pmap, devices=ONE))
    got = jax.grad(lambda x: jnp.sum(sw.simulate(one)(x) * jnp.arange(3.0)))(jnp.asarray(X))
    want = jax.grad(lambda x: jnp.sum(normalised(jax.pmap)(x) * jnp.arange(3.0)))(jnp.asarray(X))
    assert_same(got, jax.device_get(want))


def test_explained():
    f = gradients_averaged(partial(jax.pmap, devices=ONE))
    report = sw.explain(f, jax.ShapeDtypeStruct((64, 3), jnp.float32))
    # The function also passes the first of 64 rows to all devices, which the compiler sends.
    taken, use = report.collectives
    assert (use.name, use.axes, use.group_size, use.direction) == ("psum", ("batch",), 64, "update")
    assert (taken.name, taken.axes, taken.by) == ("psum", ("batch",), "compiler")


def test_jax_itself_is_as_before():
    sw.simulate(without_a_name(jax.pmap))(X)
    with pytest.raises(ValueError, match=r"."):
        jax.pmap(jnp.sin, devices=ONE)(X)
    assert_same(jax.device_get(jax.pmap(jnp.sin)(X)), np.sin(X))
