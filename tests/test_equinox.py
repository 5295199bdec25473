"""Equinox models: modules are arguments and results as they are, functions and all."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardwise as sw

from .optional import because, needed

eqx = needed("equinox", "that its modules can be arguments")

MESH = {"data": 4}
X = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)), jnp.float32)
Y = X.sum(-1, keepdims=True)


def model():
    """With an activation, which is a function among the leaves."""
    return eqx.nn.MLP(3, 1, 4, 1, key=jax.random.key(0))


def loss(model, x, y):
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


def sharded(model, x, y, *, mesh, times=1):
    arrays, rest = eqx.partition(model, eqx.is_array)

    def part(arrays, x, y):
        grads = jax.grad(lambda a: loss(eqx.combine(a, rest), x, y))(
            jax.lax.pcast(arrays, "data", to="varying")
        )
        return jax.tree.map(lambda g: times * jax.lax.pmean(g, "data"), grads)

    specs = P(), P("data"), P("data")
    return jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=P())(arrays, x, y)


def test_a_module_is_an_argument():
    own = model()
    got = sw.simulate(sharded, mesh=MESH)(own, X, Y)
    want = eqx.filter_grad(loss)(own, X, Y)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_check_prove_and_explain_take_modules():
    own = model()
    assert sw.check(sharded, own, X, Y, mesh={"data": [1, 4]})

    def summed(model, x, y, *, mesh):
        return sharded(model, x, y, mesh=mesh, times=mesh.size)

    verdict = sw.check(summed, own, X, Y, mesh={"data": [1, 4]})
    assert not verdict
    assert verdict.findings[0].code == "SW401"
    report = sw.explain(sharded, own, X, Y, mesh=MESH)
    assert report.collectives


def test_a_module_comes_back_with_its_functions():
    def doubled(model, x, *, mesh):
        def body(x):
            return jax.lax.psum(x.sum(), "data")

        total = jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)
        return jax.tree.map(lambda a: a * 2 if eqx.is_array(a) else a, model), total

    own = model()
    new, total = sw.simulate(doubled, mesh=MESH)(own, X)
    assert new.activation is own.activation
    np.testing.assert_allclose(new.layers[0].weight, 2 * own.layers[0].weight)
    np.testing.assert_allclose(total, X.sum(), rtol=1e-5)


def test_a_function_alone_is_still_refused_by_name():
    with pytest.raises(sw.ArgumentError, match="static_argnames"):
        sw.simulate(lambda fn, x: fn(x), mesh=MESH)(jnp.sin, X)


def test_evaluate_takes_a_module_as_state():
    own = model()

    def fn(model, batch):
        return ((jax.vmap(model)(batch["x"]) - batch["y"]) ** 2).mean(-1)

    data = {"x": np.asarray(X), "y": np.asarray(Y)}
    got = sw.evaluate(fn, own, data, batch=3, progress=False)["mean"]
    np.testing.assert_allclose(got, loss(own, X, Y), rtol=1e-5)


@pytest.mark.skipif(
    not hasattr(eqx, "filter_shard_map"),
    reason=because("This Equinox has no filter_shard_map", "pip install --upgrade equinox"),
)
def test_filter_shard_map():
    def total(model, x, *, mesh):
        def part(model, x):
            return jax.lax.psum(jax.vmap(model)(x).sum(), "data")

        spread = eqx.filter_shard_map(part, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
        return spread(model, x)

    own = model()
    got = sw.simulate(total, mesh=MESH)(own, X)
    np.testing.assert_allclose(got, jax.vmap(own)(X).sum(), rtol=1e-5)
