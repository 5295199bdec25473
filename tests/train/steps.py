"""One step of plain SGD, whose update is the gradient: what the tests of steps share."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import shardwise as sw

from ..support import normal, real_mesh

VIRTUAL, REAL = sw.mesh(data=8), real_mesh(data=8)
SGD = optax.sgd(1.0)
BATCH = {"x": normal(16, 3), "y": normal(16, seed=1)}


def squares(params, batch):
    return (batch["x"] @ params["w"] - batch["y"]) ** 2


def gradient(loss, mesh, batch=BATCH, params=None, **options):
    """What one step of plain SGD took off the params, and the metrics."""
    params = {"w": jnp.full(3, 0.5)} if params is None else params
    step = sw.data_parallel(loss, SGD, mesh=mesh, **options)
    state, metrics = step(step.init(params), batch)
    return jax.tree.map(lambda a, b: np.asarray(a - b), params, state.params), metrics


def plain_gradient(loss, params=None, batch=BATCH):
    params = {"w": jnp.full(3, 0.5)} if params is None else params
    return jax.tree.map(np.asarray, jax.grad(lambda p: loss(p, batch).mean())(params))


def object_squares(model, batch):
    return (model(batch["x"]) - batch["y"]) ** 2


def with_metrics(params, batch):
    errors = jnp.abs(batch["x"] @ params["w"] - batch["y"])
    weights = jnp.arange(errors.shape[0]) * 0 + 2
    return squares(params, batch), {
        "error": errors,
        "small": errors < 1,
        "double": (errors, weights),
        "mean": errors.mean(),
    }
