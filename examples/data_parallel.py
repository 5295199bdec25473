"""Data parallelism: every device has the whole model and a part of the batch.

Placement: the parameters are on every device, the batch is split over `data`.
Communication: one `pmean` per step, as large as the parameters (and the loss, a scalar).

Each device takes the gradient of the mean loss over its own examples. The parts are equally large,
so the mean of these gradients is the gradient of the mean over the whole batch.

The trap: inside `shard_map` a replicated value that meets a split one is first made to vary, and
the transpose of that step is a `psum`. So `grad(local_loss)` is already summed over the devices,
the `pmean` that follows has nothing left to do, and the gradient is n times too large. Casting the
parameters to varying before `grad` keeps the gradient local, and `pmean` is then what it says.
"""

import jax
import jax.numpy as jnp
from _gallery import compare, normals, shapes
from jax import P

import shardwise as sw

AXES = ("data",)
LEARNING_RATE = 0.1


def loss_fn(params, x, y):
    """The mean squared error of a small MLP."""
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.mean((hidden @ params["w2"] + params["b2"] - y) ** 2)


def sgd(params, grads):
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)


def body(params, batch):
    """What one device does with its part of the batch."""
    local = jax.lax.pcast(params, "data", to="varying")
    loss, grads = jax.lax.pmean(jax.value_and_grad(loss_fn)(local, *batch), "data")
    return sgd(params, grads), loss


def step(params, batch, *, mesh):
    """One step of SGD: the new parameters and the loss before the step."""
    sharded = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P()))
    return sharded(params, batch)


def reference(params, batch):
    """The same step on one device."""
    loss, grads = jax.value_and_grad(loss_fn)(params, *batch)
    return sgd(params, grads), loss


def example_args(seed=0, examples=64, features=8, hidden=16, targets=4):
    """Parameters and a batch, as `step` and `reference` take them."""
    normal = normals(seed)
    params = {
        "w1": normal(features, hidden, scale=features**-0.5),
        "b1": jnp.zeros(hidden),
        "w2": normal(hidden, targets, scale=hidden**-0.5),
        "b2": jnp.zeros(targets),
    }
    return params, (normal(examples, features), normal(examples, targets))


def large():
    """The same step as it might be trained, as shapes."""
    return step, shapes(example_args, examples=65536, features=4096, hidden=16384, targets=4096)


@sw.case(mesh={"data": [1, 2, 4, 8]}, reference=reference, explain=large, explain_mesh={"data": 64})
def data_parallel():
    """Declare the program for `shardwise check`, `prove`, `inspect` and `explain`."""
    return step, example_args()


def main():
    meshes = [{"data": size} for size in (1, 8, 64)]
    compare("Data parallelism", step, reference, example_args(), meshes)


if __name__ == "__main__":
    main()
