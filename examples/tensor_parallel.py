"""Tensor parallelism: one MLP layer that is too wide for a device, split over `model`.

Placement: the first matrix is split by columns and the second by rows, so a device holds some
of the hidden units with everything that goes into them and comes out of them. The input, the
output and the last bias are on every device.
Communication: one `psum` of the output forward. Backward, nothing: the gradient of the output is
the same everywhere, and each device needs only its own units to go on. (The gradient with respect
to the input would be the second `psum` that a layer below would have to wait for.)

Column then row is the order that needs no communication in between: the activation function acts
on each hidden unit alone, wherever it is.

The trap: the last bias must be added after the `psum`. Added before, it is counted n times.
"""

import jax
import jax.numpy as jnp
from _gallery import compare, normals, shapes
from jax import P

import shardwise as sw

AXES = ("model",)
LEARNING_RATE = 0.1
SPECS = {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}


def mlp(params, x, reduce=lambda partial: partial):
    """The layer; `reduce` completes the sum over the hidden units that are elsewhere."""
    hidden = jax.nn.gelu(x @ params["w1"] + params["b1"])
    return reduce(hidden @ params["w2"]) + params["b2"]


def sgd(params, grads):
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)


def body(params, x, y):
    """What one device does with its hidden units."""

    def loss_fn(params):
        out = mlp(params, x, reduce=lambda partial: jax.lax.psum(partial, "model"))
        return jnp.mean((out - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return sgd(params, grads), loss


def step(params, x, y, *, mesh):
    """One step of SGD: the new parameters and the loss before the step."""
    sharded = jax.shard_map(body, mesh=mesh, in_specs=(SPECS, P(), P()), out_specs=(SPECS, P()))
    return sharded(params, x, y)


def reference(params, x, y):
    """The same step on one device."""
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((mlp(p, x) - y) ** 2))(params)
    return sgd(params, grads), loss


def example_args(seed=0, examples=12, features=8, hidden=32, targets=6):
    """Parameters, inputs and targets, as `step` and `reference` take them."""
    normal = normals(seed)
    params = {
        "w1": normal(features, hidden, scale=features**-0.5),
        "b1": normal(hidden, scale=0.1),
        "w2": normal(hidden, targets, scale=hidden**-0.5),
        "b2": normal(targets, scale=0.1),
    }
    return params, normal(examples, features), normal(examples, targets)


def large():
    """The layer of a large model, as shapes."""
    return step, shapes(example_args, examples=8192, features=8192, hidden=28672, targets=8192)


@sw.case(
    mesh={"model": [1, 2, 4, 8]}, reference=reference, explain=large, explain_mesh={"model": 8}
)
def tensor_parallel():
    """Declare the program for `shardwise check`, `prove`, `inspect` and `explain`."""
    return step, example_args()


def main():
    meshes = [{"model": size} for size in (1, 8, 32)]
    compare("Tensor parallelism", step, reference, example_args(), meshes)


if __name__ == "__main__":
    main()
