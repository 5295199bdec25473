"""ZeRO: data parallelism in which no device keeps the whole model or the whole optimizer.

Placement: parameters and both moments of Adam are split over `data`, and so is the batch.
Communication: `all_gather` completes the parameters before the step, and `psum_scatter` adds up the
gradients and leaves each device only the part that it updates. Together that is what the `psum` of
plain data parallelism sends (an all-reduce is a reduce-scatter and an all-gather), for 1/n of the
memory between the steps. Adam itself works element by element, so it sends nothing.

The trap: `psum_scatter` adds. The losses are means over a part of the batch, so the sum of their
gradients must be divided by the number of devices. Adam normalises the gradient, so in the course
of training it hides a missing division; with SGD the learning rate would be n times too large.
"""

import jax
import jax.numpy as jnp
from _gallery import compare, normals, shapes
from jax import P

import shardwise as sw

AXES = ("data",)
LEARNING_RATE, B1, B2, EPSILON = 0.01, 0.9, 0.99, 1e-8
STATE_SPECS = {"params": P("data"), "m": P("data"), "v": P("data"), "count": P()}


def loss_fn(params, x, y):
    """The mean squared error of a small MLP."""
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.mean((hidden @ params["w2"] - y) ** 2)


def adam(state, grads):
    """One update of Adam, for all parameters or for any part of them."""
    count = state["count"] + 1
    m = jax.tree.map(lambda m, g: B1 * m + (1 - B1) * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: B2 * v + (1 - B2) * g**2, state["v"], grads)

    def update(p, m, v):
        scale = jnp.sqrt(v / (1 - B2**count)) + EPSILON
        return p - LEARNING_RATE * m / (1 - B1**count) / scale

    return {"params": jax.tree.map(update, state["params"], m, v), "m": m, "v": v, "count": count}


def body(state, batch):
    """What one device does: complete the parameters, differentiate, update its part."""
    devices = jax.lax.axis_size("data")
    params = jax.lax.all_gather(state["params"], "data", tiled=True)
    loss, grads = jax.value_and_grad(loss_fn)(params, *batch)
    grads = jax.lax.psum_scatter(grads, "data", tiled=True)
    grads = jax.tree.map(lambda g: g / devices, grads)
    return adam(state, grads), jax.lax.pmean(loss, "data")


def step(state, batch, *, mesh):
    """One step of Adam: the new state and the loss before the step."""
    sharded = jax.shard_map(
        body, mesh=mesh, in_specs=(STATE_SPECS, P("data")), out_specs=(STATE_SPECS, P())
    )
    return sharded(state, batch)


def reference(state, batch):
    """The same step on one device."""
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], *batch)
    return adam(state, grads), loss


def example_args(seed=0, examples=32, features=8, hidden=16, targets=4):
    """A state in the middle of training and a batch, as `step` and `reference` take them."""
    normal = normals(seed)
    params = {
        "w1": normal(features, hidden, scale=features**-0.5),
        "b1": normal(hidden, scale=0.1),
        "w2": normal(hidden, targets, scale=hidden**-0.5),
    }
    m = jax.tree.map(lambda p: 0.1 * p, params)
    v = jax.tree.map(lambda p: 0.01 * p**2 + 1e-3, params)
    state = {"params": params, "m": m, "v": v, "count": jnp.float32(10)}
    return state, (normal(examples, features), normal(examples, targets))


def large():
    """The same step as it might be trained, as shapes."""
    return step, shapes(example_args, examples=65536, features=4096, hidden=16384, targets=4096)


@sw.case(mesh={"data": [1, 2, 4, 8]}, reference=reference, explain=large, explain_mesh={"data": 64})
def zero():
    """Declare the program for `shardwise check`, `prove`, `inspect` and `explain`."""
    return step, example_args()


def main():
    meshes = [{"data": size} for size in (1, 2, 8)]
    compare("ZeRO", step, reference, example_args(), meshes)


if __name__ == "__main__":
    main()
