"""The programs that `shardwise demo` runs: plain JAX, as a reader would write them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

Params = Any


# Compiled as one: a dozen small operations take seconds to compile one by one.
@functools.partial(jax.jit, static_argnums=(0, 1))
def make_problem(batch: int, width: int) -> tuple[Params, jax.Array, jax.Array]:
    """Params of a perceptron with three hidden layers, and a batch to fit."""
    widths = [width // 4, width, width, width, 8]
    *layer_keys, x_key, y_key = jax.random.split(jax.random.key(0), len(widths) + 1)
    params = [
        (jax.random.normal(key, (fan_in, fan_out)) / fan_in**0.5, jnp.zeros(fan_out))
        for key, fan_in, fan_out in zip(layer_keys, widths[:-1], widths[1:], strict=True)
    ]
    x = jax.random.normal(x_key, (batch, widths[0]))
    y = 1 + jax.random.normal(y_key, (batch, widths[-1]))
    return params, x, y


def loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    *hidden, (weight, bias) = params
    for hidden_weight, hidden_bias in hidden:
        x = jax.nn.gelu(x @ hidden_weight + hidden_bias)
    return jnp.mean((x @ weight + bias - y) ** 2)


def textbook(params, x, y, *, mesh):
    def per_device(params, x, y):
        grads = jax.grad(loss)(params, x, y)
        return lax.pmean(grads, "data")

    return split_batch(per_device, mesh)(params, x, y)


def right(params, x, y, *, mesh):
    def per_device(params, x, y):
        return jax.grad(lambda p: lax.pmean(loss(p, x, y), "data"))(params)

    return split_batch(per_device, mesh)(params, x, y)


def split_batch(per_device, mesh):
    specs = (P(), P("data"), P("data"))
    return jax.shard_map(per_device, mesh=mesh, in_specs=specs, out_specs=P())


def only_the_first(x, *, mesh):
    def body(x):
        def total(x):
            return lax.pcast(lax.psum(x, "data"), "data", to="varying")

        first = lax.axis_index("data") == 0
        return lax.cond(first, total, lambda x: x, x)

    rows = P("data")
    return jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=rows)(x)
