"""The programs that `shardwise demo` runs: plain JAX, as a reader would write them."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

Params = Any


def problem_shapes(batch: int, width: int) -> tuple[Params, Any, Any]:
    """Return the shapes of a perceptron with three hidden layers, and of a batch to fit."""
    widths = [width // 4, width, width, width, 8]
    params = [
        (_shape(fan_in, fan_out), _shape(fan_out)) for fan_in, fan_out in itertools.pairwise(widths)
    ]
    return params, _shape(batch, widths[0]), _shape(batch, widths[-1])


def make_problem(batch: int, width: int) -> tuple[Params, Any, Any]:
    """Return random numbers of these shapes. NumPy draws them: nothing has to be compiled."""
    random = np.random.default_rng(0)

    def draw(like):
        scale = 1 if like.shape[0] == batch else like.shape[0] ** -0.5
        return random.standard_normal(like.shape, like.dtype) * np.float32(scale)

    params, x, y = jax.tree.map(draw, problem_shapes(batch, width))
    return params, x, 1 + y


def _shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, np.float32)


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
