"""One training step of a multilayer perceptron, in every form the benchmarks compare.

Every form takes `(params, x, y)`, returns `(loss, new params)` and computes the same numbers. The
step is plain JAX with gradient descent, so that what differs between two forms is how the batch is
split and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Params = list[tuple[jax.Array, jax.Array]]
Step = Callable[[Params, jax.Array, jax.Array], tuple[jax.Array, Params]]

LEARNING_RATE = 0.1


def sizes(width: int) -> list[int]:
    """Six hidden layers of `width`, inputs and outputs a quarter as wide."""
    return [width // 4, *[width] * 6, width // 4]


def make_params(width: int) -> Params:
    widths = sizes(width)
    keys = jax.random.split(jax.random.key(0), len(widths) - 1)
    return [
        (jax.random.normal(key, (fan_in, fan_out)) / fan_in**0.5, jnp.zeros(fan_out))
        for key, fan_in, fan_out in zip(keys, widths[:-1], widths[1:], strict=True)
    ]


def make_batch(width: int, batch: int) -> tuple[jax.Array, jax.Array]:
    shape = (batch, width // 4)
    return jax.random.normal(jax.random.key(1), shape), jax.random.normal(jax.random.key(2), shape)


def mean_loss(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    *hidden, (weight, bias) = params
    for hidden_weight, hidden_bias in hidden:
        x = jax.nn.gelu(x @ hidden_weight + hidden_bias)
    return jnp.mean((x @ weight + bias - y) ** 2)


def descend(params: Params, grads: Params) -> Params:
    return jax.tree.map(lambda param, grad: param - LEARNING_RATE * grad, params, grads)


def unsharded(params: Params, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Params]:
    loss, grads = jax.value_and_grad(mean_loss)(params, x, y)
    return loss, descend(params, grads)


def accumulated(shards: int) -> Step:
    """What one writes by hand to save memory: a scan over slices that adds up the gradients."""

    def step(params: Params, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Params]:
        def add(total: Any, slice_: Any) -> tuple[Any, None]:
            found = jax.value_and_grad(mean_loss)(params, *slice_)
            return jax.tree.map(jnp.add, total, found), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        (loss, grads), _ = lax.scan(add, zero, (_sliced(x, shards), _sliced(y, shards)))
        return loss / shards, descend(params, jax.tree.map(lambda grad: grad / shards, grads))

    return step


def vmapped(shards: int) -> Step:
    """The body under `vmap(axis_name=...)`, with the idiom that is right there.

    Under `vmap` the mean of the local gradients is the right one; under `shard_map` it is `shards`
    times too large. The two forms therefore cannot share a body.
    """

    def body(params: Params, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Params]:
        loss, grads = lax.pmean(jax.value_and_grad(mean_loss)(params, x, y), "data")
        return loss, descend(params, grads)

    def step(params: Params, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Params]:
        over_shards = jax.vmap(body, in_axes=(None, 0, 0), out_axes=None, axis_name="data")
        return over_shards(params, _sliced(x, shards), _sliced(y, shards))

    return step


def sharded(
    params: Params, x: jax.Array, y: jax.Array, *, mesh: Mesh | AbstractMesh
) -> tuple[jax.Array, Params]:
    """The step as it is written for many devices."""

    def body(params: Params, x: jax.Array, y: jax.Array) -> tuple[jax.Array, Params]:
        loss, grads = jax.value_and_grad(lambda p: lax.pmean(mean_loss(p, x, y), "data"))(params)
        return loss, descend(params, grads)

    split = jax.shard_map(
        body, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=(P(), P())
    )
    return split(params, x, y)


def simulated(shards: int, at_once: int | str) -> Step:
    import shardwise as sw

    return sw.simulate(sharded, mesh=sw.mesh(data=shards), at_once=at_once)


def native_mesh(shards: int) -> Mesh:
    return jax.make_mesh((shards,), ("data",), axis_types=(AxisType.Auto,))


def native(shards: int) -> Step:
    mesh = native_mesh(shards)
    return lambda params, x, y: sharded(params, x, y, mesh=mesh)


def place_native(shards: int, params: Params, x: jax.Array, y: jax.Array) -> tuple[Any, Any, Any]:
    """Put params and batch where the native step wants them, so that no step moves them."""
    mesh = native_mesh(shards)
    params = jax.device_put(params, NamedSharding(mesh, P()))
    x, y = jax.device_put((x, y), NamedSharding(mesh, P("data")))
    return params, x, y


def make_step(kind: str, shards: int, at_once: int | str) -> Step:
    if kind == "unsharded":
        return unsharded
    if kind == "simulated":
        return simulated(shards, at_once)
    return {"accumulated": accumulated, "vmap": vmapped, "native": native}[kind](shards)


def _sliced(array: jax.Array, shards: int) -> jax.Array:
    return array.reshape(shards, -1, *array.shape[1:])
