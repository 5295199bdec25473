"""Data parallelism: every device has the whole model and a part of the batch.

Who holds what: the parameters are on every device, the batch is split over `data`.
What is sent: one `pmean` per step, as large as the parameters (and the loss, a scalar).

Each device takes the gradient of the mean loss over its own examples. The parts are equally large,
so the mean of these gradients is the gradient of the mean over the whole batch.

The trap: inside `shard_map` a replicated value that meets a split one is first made to vary, and
the transpose of that step is a `psum`. So `grad(local_loss)` is already summed over the devices,
the `pmean` that follows has nothing left to do, and the gradient is n times too large. Casting the
parameters to varying before `grad` keeps the gradient local, and `pmean` is then what it says.
"""

import jax
import jax.numpy as jnp
import numpy as np
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
    rng = np.random.default_rng(seed)

    def normal(*shape, scale=1.0):
        return jnp.asarray(scale * rng.standard_normal(shape, np.float32))

    params = {
        "w1": normal(features, hidden, scale=features**-0.5),
        "b1": jnp.zeros(hidden),
        "w2": normal(hidden, targets, scale=hidden**-0.5),
        "b2": jnp.zeros(targets),
    }
    return params, (normal(examples, features), normal(examples, targets))


def main():
    args = example_args()
    expected = jax.jit(reference)(*args)
    print(f"Data parallelism, {len(args[1][0])} examples. On one device: loss {expected[1]:.6f}")
    print("devices      loss  largest difference in loss and new parameters")
    for devices in (1, 8, 64):
        params, loss = sw.simulate(step, mesh=sw.mesh(data=devices))(*args)
        gaps = jax.tree.map(lambda a, b: np.abs(np.subtract(a, b)).max(), (params, loss), expected)
        print(f"{devices:7}  {loss:.6f}  {max(jax.tree.leaves(gaps)):.1e}")


if __name__ == "__main__":
    main()
