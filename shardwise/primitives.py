"""The smallest sharded programs: five functions with the same result on one device and on many.

Each wraps a per-device body in `jax.shard_map`. `_spread` alone decides where it runs: on the
devices of a real mesh, or, for a virtual mesh, on this device through `simulate`. The result is
the same.

`sharded_eval_loss`, `shard_map_simulate` and `data_parallel_step` take a number of shards. Without
a mesh every shard has its own virtual device. A mesh may have fewer devices than there are
shards; each device then processes its shards one after another. `shard_map_vs_vmap` and
`shard_map_psum` run on one device, on an axis named `data`, unless a mesh is passed.

A mesh may have any axes. All of them together split the data.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, SupportsFloat, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from jax.sharding import AbstractMesh, AxisType, Mesh
from numpy.typing import ArrayLike

from ._base.calls import public
from ._base.errors import ArgumentError, ShardingError, a_type, explain_error, require
from ._engine.simulate import simulate
from ._mesh import MeshLike, one_mesh
from ._mesh import mesh as virtual_mesh

require("flax", "shardwise.primitives")

import flax.linen as nn  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402

AnyMesh: TypeAlias = Mesh | AbstractMesh


@public("sw.primitives.sharded_eval_loss")
def sharded_eval_loss(
    seed: SupportsFloat,
    x: ArrayLike,
    y: ArrayLike,
    num_shards: SupportsFloat,
    *,
    form: Literal["shard_map", "loop", "vmap"] = "shard_map",
    mesh: MeshLike | None = None,
) -> jax.Array:
    """Return the mean squared error of `nn.Dense(1)` over an eval set, one shard at a time.

    Three forms return the same number:

    - `"shard_map"`: a shard per device, and a `pmean` over the devices.
    - `"loop"`: a Python loop on this device. Each shard is finished, and its memory free, before
      the next one starts. For the same reason the `jit` is inside, around one shard.
    - `"vmap"`: one program for all shards. It is fast, and holds all of them in memory at once.

    Pitfalls:
        - The model is initialised on one example. `init` on all of `x` would run the forward pass
          over the whole eval set that sharding is meant to avoid.
        - The parameters are initialised once. Otherwise the losses of the shards would belong to
          different models.
        - The mean of the shards' means is the mean over all examples only because the shards are
          equally large; that is why `num_shards` must divide N. Unequal shards would have to be
          weighted by their sizes.
        - `y` has one dimension. The difference of `(N,)` predictions and `(N, 1)` targets would be
          `(N, N)`, and the loss wrong without an error.

    Args:
        seed: Seed of the parameters, an integer.
        x: Examples, `(N, D)`.
        y: Targets, `(N,)`.
        num_shards: Number of shards, an integer that divides N.
        form: How to iterate over the shards.
        mesh: Where `"shard_map"` runs, a real or a virtual mesh. Its number of devices divides
            `num_shards`. By default it is virtual and has a device for each shard.

    Returns:
        `[loss]`, of shape `(1,)`.
    """
    x, y = _floats("x", x, "N", "D"), _floats("y", y, "N")
    shards = _split("num_shards", num_shards, x=x, y=y)
    model = nn.Dense(1)
    params = model.init(jax.random.key(_integer("seed", seed)), x[:1])

    def shard_loss(params, xs, ys):
        predictions = jnp.asarray(model.apply(params, xs)).reshape(-1)
        return jnp.mean((predictions - ys) ** 2)

    if not isinstance(form, str) or form not in ("shard_map", "loop", "vmap"):
        raise ShardingError(
            _refusal("form", f"found {form!r}", "It must be 'shard_map', 'loop' or 'vmap'.")
        )
    if form == "shard_map":
        return _over_shards(shard_loss, params, shards, mesh, mean=True).reshape(1)
    if mesh is not None:
        rule = f"form={form!r} runs on this device alone."
        raise ShardingError(_refusal("mesh", "found a mesh", rule, "use form='shard_map'."))
    if form == "vmap":
        losses = jax.vmap(partial(shard_loss, params))(*shards)
    else:
        one = jax.jit(shard_loss)
        losses = jnp.stack([one(params, *shard) for shard in zip(*shards, strict=True)])
    return jnp.mean(losses).reshape(1)


@public("sw.primitives.shard_map_simulate")
def shard_map_simulate(
    seed: SupportsFloat,
    x: ArrayLike,
    num_shards: SupportsFloat,
    features: SupportsFloat,
    *,
    mesh: MeshLike | None = None,
) -> jax.Array:
    """Apply `nn.Dense(features)` to each shard of `x`, and return the concatenated outputs.

    Pitfalls:
        - The body sees only its own shard. Devices exchange values with collectives; here they
          need none.
        - The rows are split, and `out_specs` concatenates the outputs along the same dimension.
        - The model is initialised once, on the first shard, and every shard uses these parameters.
          The first shard has the shape that `apply` will see, which matters for layers that depend
          on more than the last dimension.
        - Rows that do not divide evenly would need padding. They raise an error.

    Args:
        seed: Seed of the parameters, an integer.
        x: Rows, `(N, D)`.
        num_shards: Number of shards, an integer that divides N.
        features: Outputs per row, an integer.
        mesh: Where to run, a real or a virtual mesh. Its number of devices divides `num_shards`.
            By default it is virtual and has a device for each shard.

    Returns:
        The outputs, flattened row by row, of shape `(N * features,)`.
    """
    (shards,) = _split("num_shards", num_shards, x=_floats("x", x, "N", "D"))
    model = nn.Dense(_integer("features", features, least=1))
    params = model.init(jax.random.key(_integer("seed", seed)), shards[0])
    return _over_shards(model.apply, params, (shards,), mesh, mean=False).reshape(-1)


@public("sw.primitives.data_parallel_step")
def data_parallel_step(
    seed: SupportsFloat,
    x_batch: ArrayLike,
    y_batch: ArrayLike,
    num_devices: SupportsFloat,
    lr: SupportsFloat,
    *,
    mesh: MeshLike | None = None,
) -> jax.Array:
    """Run one data-parallel step of SGD on an `nnx.Linear`, and return the loss before it.

    Pitfalls:
        - Inside `shard_map`, `pmean(grad(loss))` of replicated parameters is n times too large:
          `grad` has then already summed over the devices. The parameters are cast to varying
          first, so that `grad` is local and `pmean` is the mean.
        - Gradients are averaged, because each shard's loss is a mean. Their sum would act as a
          learning rate `num_devices` times as large.
        - There is one update, after the mean. An update per shard would be `num_devices` steps of
          a different algorithm.
        - Model and optimizer are created once. An optimizer per shard or per step would lose its
          momentum and its count.
        - `nnx.Optimizer` needs `wrt=nnx.Param`.
        - The mean of means is the mean over the batch only if the shards are equally large.

    Args:
        seed: Seed of the parameters, an integer.
        x_batch: Inputs, `(N, D_in)`.
        y_batch: Targets, `(N, D_out)`.
        num_devices: Number of shards of the batch, an integer that divides N.
        lr: Learning rate.
        mesh: Where to run, a real or a virtual mesh. Its number of devices divides `num_devices`.
            By default it is virtual and has `num_devices` devices.

    Returns:
        `[loss]`, the mean over the shards before the update, of shape `(1,)`.
    """
    x, y = _floats("x_batch", x_batch, "N", "D_in"), _floats("y_batch", y_batch, "N", "D_out")
    shards = _split("num_devices", num_devices, x_batch=x, y_batch=y)
    rngs = nnx.Rngs(_integer("seed", seed))
    model = nnx.Linear(x.shape[-1], y.shape[-1], rngs=rngs)
    optimizer = nnx.Optimizer(model, optax.sgd(_finite("lr", lr)), wrt=nnx.Param)
    return _update(model, optimizer, shards, mesh).reshape(1)


@public("sw.primitives.shard_map_vs_vmap")
def shard_map_vs_vmap(x: ArrayLike, *, mesh: MeshLike | None = None) -> jax.Array:
    """Return the sum of squares of each row, by `shard_map` and by `vmap`.

    `vmap` declares that rows are independent and leaves the rest to the compiler. `shard_map`
    declares which device has which rows.

    Pitfalls:
        - `shard_map` needs a mesh; `vmap` does not use one.
        - `P("data")` splits the first dimension. The other dimensions stay whole.
        - The body gets all the rows of its device, not one of them. Hence the `vmap` inside it.
        - On one device the two cannot differ; pass a mesh to see that they agree on more.

    Args:
        x: Rows, `(B, d)`.
        mesh: Where to run, a real or a virtual mesh. Its number of devices divides B. By default
            it has one device.

    Returns:
        `[by_shard_map, by_vmap]`, of shape `(2, B)`.
    """
    x = _array("x", x, "B", "d")
    mesh = _mesh_for(mesh, len(x), f"the {len(x)} rows of 'x'")
    rows = P(mesh.axis_names)
    by_row = jax.vmap(lambda row: jnp.sum(row**2))
    return jnp.stack([_spread(by_row, mesh, rows, rows)(x), by_row(x)])


@public("sw.primitives.shard_map_psum")
def shard_map_psum(x: ArrayLike, *, mesh: MeshLike | None = None) -> jax.Array:
    """Return the sum of all elements: each device sums its part, a `psum` adds the partial sums.

    Pitfalls:
        - Without the `psum` each device has a partial sum. On one device that is the sum, so
          the mistake shows only on more.
        - The axis name must be an axis of the mesh.
        - After a `psum` all devices have the same value, so the output is replicated: `P()`.
        - Every device must reach a collective. If a condition makes one of them skip it, the
          others wait forever.

    Args:
        x: Numbers, `(N,)`.
        mesh: Where to run, a real or a virtual mesh. Its number of devices divides N. By default
            it has one device.

    Returns:
        The sum, a scalar.
    """
    x = _array("x", x, "N")
    mesh = _mesh_for(mesh, len(x), f"the {len(x)} elements of 'x'")
    axes = mesh.axis_names
    return _spread(lambda y: jax.lax.psum(jnp.sum(y), axes), mesh, P(axes), P())(x)


def _update(model: nnx.Module, optimizer: nnx.Optimizer, shards: Any, mesh: Any) -> jax.Array:
    """Update the model once, with the shards' mean gradient; return the mean loss before it."""
    graph, params = nnx.split(model)

    def shard_loss(params, xs, ys):
        return jnp.mean((nnx.merge(graph, params)(xs) - ys) ** 2)

    loss, grads = _over_shards(jax.value_and_grad(shard_loss), params, shards, mesh, mean=True)
    optimizer.update(model, grads)
    return loss


def _over_shards(fn: Callable[..., Any], params: Any, shards: Any, mesh: Any, *, mean: bool) -> Any:
    """Return `fn(params, *shard)` for all shards: the stacked results, or their mean."""
    count = len(shards[0])
    mesh = virtual_mesh(data=count) if mesh is None else mesh
    mesh = _mesh_for(mesh, count, f"{count} shards")
    axes = mesh.axis_names

    def body(params, shards):
        # `fn` may differentiate, and the gradient of replicated values is summed over the devices.
        params = jax.lax.pcast(params, axes, to="varying")
        each = jax.lax.map(lambda shard: fn(params, *shard), shards)
        return jax.tree.map(lambda v: jax.lax.pmean(v.mean(0), axes), each) if mean else each

    return _spread(body, mesh, (P(), P(axes)), P() if mean else P(axes))(params, shards)


def _spread(body: Callable[..., Any], mesh: AnyMesh, in_specs: Any, out_specs: Any) -> Any:
    """Return a function that runs `body` on every device of `mesh`, or simulates that."""
    sharded = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
    return jax.jit(sharded) if isinstance(mesh, Mesh) else simulate(sharded)


def _mesh_for(mesh: MeshLike | None, count: int, operands: str) -> AnyMesh:
    """Return the mesh to run on. Its axes are Auto, so that arrays need not be placed on it."""
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    mesh = one_mesh(mesh)
    rule = "Every device takes the same number of them."
    _must_divide("mesh", mesh.size, "devices do", count, operands, rule)
    auto = (AxisType.Auto,) * len(mesh.axis_names)
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, mesh.axis_names, axis_types=auto)
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=auto)


def _split(name: str, count: SupportsFloat, **arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Reshape each array to `(count, length / count, ...)`: its shards, in order."""
    (first, length), *others = ((key, len(array)) for key, array in arrays.items())
    for other, size in others:
        if size != length:
            problem = f"found length {size}, but {first!r} has length {length}"
            rule = "There is one target for each example."
            raise ShardingError(_refusal(other, problem, rule, "cut the longer of the two."))
    parts = _integer(name, count, least=1)
    rule = "All shards have the same number of rows."
    _must_divide(name, parts, "shards do", length, f"the {length} rows of {first!r}", rule)
    return tuple(a.reshape(parts, length // parts, *a.shape[1:]) for a in arrays.values())


def _must_divide(name: str, count: int, unit: str, size: int, operands: str, rule: str) -> None:
    if size % count == 0:
        return
    small = [n for n in range(1, math.isqrt(size) + 1) if size % n == 0]
    divisors = sorted({*small, *(size // n for n in small)})
    below = [n for n in divisors if n < count][-1:]
    above = [n for n in divisors if n > count][:1]
    remedy = f"use {' or '.join(str(n) for n in below + above)}."
    raise ShardingError(_refusal(name, f"{count} {unit} not divide {operands}", rule, remedy))


def _array(name: str, value: ArrayLike, *dims: str) -> jax.Array:
    """Return `value` as an array; raise unless it has these dimensions, none of them empty."""
    try:
        array = jnp.asarray(value if isinstance(value, jax.Array) else np.asarray(value))
    except (TypeError, ValueError, OverflowError) as error:
        rule = "It must be an array of numbers, or nested lists of them."
        raise ArgumentError(_refusal(name, f"found {a_type(value)}", rule)) from error
    shape = f"({dims[0]},)" if len(dims) == 1 else f"({', '.join(dims)})"
    if array.ndim != len(dims):
        rule = f"It must have shape {shape}."
        raise ShardingError(_refusal(name, f"found shape {array.shape}", rule))
    if array.size == 0:
        rule = f"No dimension of {shape} may be empty."
        raise ShardingError(_refusal(name, f"found shape {array.shape}", rule))
    return array


def _floats(name: str, value: ArrayLike, *dims: str) -> jax.Array:
    array = _array(name, value, *dims)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ArgumentError(_refusal(name, f"found {array.dtype}", "It must be real."))
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.float32)


def _integer(name: str, value: SupportsFloat, *, least: int | None = None) -> int:
    number = _number(name, value)
    if not math.isfinite(number) or number != int(number):
        raise ShardingError(_refusal(name, f"found {number}", "It must be an integer."))
    if abs(number) >= 1 << 31:
        raise ShardingError(_refusal(name, f"found {number}", "It must be less than 2**31."))
    if least is not None and number < least:
        raise ShardingError(_refusal(name, f"found {number}", f"It must be {least} or more."))
    return int(number)


def _finite(name: str, value: SupportsFloat) -> float:
    number = _number(name, value)
    if not math.isfinite(number):
        raise ShardingError(_refusal(name, f"found {number}", "It must be a finite number."))
    return float(number)


def _number(name: str, value: Any) -> Any:
    """Return a number or a zero-dimensional array as a Python number."""
    number = value.item() if getattr(value, "shape", None) == () else value
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise ArgumentError(_refusal(name, f"found {value!r}", "It must be a number."))
    return number


def _refusal(name: str, problem: str, rule: str, remedy: str = "") -> str:
    return explain_error(problem, where=f"argument {name!r}", rule=rule, remedy=remedy)
