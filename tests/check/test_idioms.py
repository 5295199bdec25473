"""Low-precision training as people write it: no false alarm, and each wrong twin is seen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import P, lax

from tests.support import check

MESH = {"data": [1, 2, 4, 8]}
RNG = np.random.default_rng(0)
PARAMS = {
    "w": RNG.normal(size=(8, 16)).astype(np.float32) * 0.3,
    "v": RNG.normal(size=(16, 4)).astype(np.float32) * 0.3,
}
X = RNG.normal(size=(32, 8)).astype(np.float32)
Y = RNG.normal(size=(32, 4)).astype(np.float32)


def loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)


def gradients(params, x, y, dtype=None):
    """Each device's own gradients, computed in a dtype."""
    params = lax.pcast(params, "data", to="varying")
    if dtype is not None:
        params, x, y = jax.tree.map(lambda leaf: leaf.astype(dtype), (params, x, y))
    return jax.grad(loss)(params, x, y)


def step(body):
    def f(params, x, y, *, mesh):
        specs = (P(), P("data"), P("data"))
        mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())
        return mapped(params, x, y)

    return f


def mean(tree):
    return lax.pmean(tree, "data")


def total(tree):
    return lax.psum(tree, "data")


def as_bfloat16(params, x, y, reduce):
    grads = gradients(params, x, y)
    grads = reduce(jax.tree.map(lambda g: g.astype(jnp.bfloat16), grads))
    return jax.tree.map(lambda p, g: p - 0.1 * g.astype(p.dtype), params, grads)


def as_int8(params, x, y, reduce):
    def sent(g):
        scale = lax.pmax(jnp.abs(g).max(), "data") / 127
        counted = lax.psum(jnp.round(g / scale).astype(jnp.int8).astype(jnp.int32), "data")
        return counted * scale / (lax.axis_size("data") if reduce is mean else 1)

    return jax.tree.map(sent, gradients(params, x, y))


def with_loss_scaling(params, x, y, reduce):
    def scaled(p):
        return 1024.0 * loss(p, x.astype(jnp.float16), y.astype(jnp.float16))

    half = jax.tree.map(lambda p: p.astype(jnp.float16), lax.pcast(params, "data", to="varying"))
    grads = jax.tree.map(lambda g: g.astype(jnp.float32) / 1024.0, jax.grad(scaled)(half))
    grads = reduce(grads)
    finite = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
    return jax.tree.map(lambda p, g: jnp.where(finite, p - 0.1 * g, p), params, grads)


def adafactor(params, x, y, reduce):
    """Two steps: in the first one any factor of the gradient cancels."""
    optimizer = optax.adafactor(1e-2, min_dim_size_to_factor=4, momentum=0.9)
    state = optimizer.init(params)
    for over in (mean, reduce):
        grads = over(gradients(params, x, y, jnp.bfloat16))
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params


def stochastically(params, x, y, reduce):
    """New parameters in bfloat16, rounded up or down by random bits, the same on all devices."""
    grads = reduce(gradients(params, x, y))

    def rounded(p, g):
        new = p - 0.1 * g
        noise = jax.random.bits(jax.random.key(7), new.shape, jnp.uint32) >> 16
        bits = (lax.bitcast_convert_type(new, jnp.uint32) + noise) & jnp.uint32(0xFFFF0000)
        return lax.bitcast_convert_type(bits, jnp.float32).astype(jnp.bfloat16)

    return jax.tree.map(rounded, params, grads)


IDIOMS = {
    "gradients cast to bfloat16": as_bfloat16,
    "int8 gradients that share a scale": as_int8,
    "loss scaling": with_loss_scaling,
    "Adafactor": adafactor,
    "stochastic rounding": stochastically,
}


@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_is_right(name):
    program = step(lambda *args: IDIOMS[name](*args, mean))
    verdict = check(program, PARAMS, X, Y, mesh=MESH)
    assert verdict, verdict


@pytest.mark.parametrize("name", IDIOMS)
def test_the_same_with_a_sum_in_place_of_a_mean_is_wrong(name):
    program = step(lambda *args: IDIOMS[name](*args, total))
    verdict = check(program, PARAMS, X, Y, mesh=MESH)
    assert not verdict
    assert "{data: 8}" in verdict.wrong_on
