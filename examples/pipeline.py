"""Pipeline parallelism (GPipe): each device has some of the layers, microbatches flow through.

Placement: the layers are split over `stage`, in order. The microbatches are on every device,
but only the first stage reads the inputs and only the last reads the targets.
Communication: at every tick each stage hands its activations to the next one (`ppermute`); the
gradients take the same way back. At the end one `psum` sends the loss to every stage.

With n stages and m microbatches the loop takes m + n - 1 ticks. Stage s works on microbatch t - s
at tick t; before and after that it computes on values that no one uses (the bubble, a share of
(n - 1) / (m + n - 1) of the time).

The trap: those values must not reach the loss. Here the loss of every stage but the last, and of
every tick before the last stage has something real, is replaced by zero. Without that the result
is still right on one device.
"""

import jax
import jax.numpy as jnp
from _gallery import compare, normals, shapes
from jax import P

import shardwise as sw

AXES = ("stage",)
LEARNING_RATE = 0.1


def run_layers(layers, x):
    """Apply the layers given, one after the other, with a residual connection."""

    def layer(x, p):
        return x + jnp.tanh(x @ p["w"] + p["b"]), None

    return jax.lax.scan(layer, x, layers)[0]


def pipeline_loss(layers, inputs, targets):
    """The loss over all microbatches, the same on every stage."""
    stage, stages = jax.lax.axis_index("stage"), jax.lax.axis_size("stage")
    microbatches = len(inputs)

    def tick(carry, t):
        received, total = carry
        first_in = inputs[jnp.minimum(t, microbatches - 1)]
        out = run_layers(layers, jnp.where(stage == 0, first_in, received))
        done = t - (stages - 1)
        error = jnp.mean((out - targets[jnp.maximum(done, 0)]) ** 2)
        total += jnp.where((stage == stages - 1) & (done >= 0), error, 0.0)
        sent = jax.lax.ppermute(out, "stage", [(s, s + 1) for s in range(stages - 1)])
        return (sent, total), None

    start = jax.lax.pcast((jnp.zeros_like(inputs[0]), jnp.zeros(())), "stage", to="varying")
    (_, total), _ = jax.lax.scan(tick, start, jnp.arange(microbatches + stages - 1))
    return jax.lax.psum(total, "stage") / microbatches


def sgd(params, grads):
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)


def body(layers, inputs, targets):
    """What one stage does: forward through the pipeline, back through it, update its layers."""
    loss, grads = jax.value_and_grad(pipeline_loss)(layers, inputs, targets)
    return sgd(layers, grads), loss


def step(layers, inputs, targets, *, mesh):
    """One step of SGD: the new layers and the loss before the step."""
    sharded = jax.shard_map(
        body, mesh=mesh, in_specs=(P("stage"), P(), P()), out_specs=(P("stage"), P())
    )
    return sharded(layers, inputs, targets)


def reference(layers, inputs, targets):
    """The same step on one device, the whole batch at once."""

    def loss_fn(layers):
        return jnp.mean((run_layers(layers, inputs) - targets) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(layers)
    return sgd(layers, grads), loss


def example_args(seed=0, layers=8, microbatches=4, size=3, features=8):
    """Layers, and inputs and targets cut into microbatches, as `step` and `reference` take them."""
    normal = normals(seed)
    params = {
        "w": normal(layers, features, features, scale=features**-0.5),
        "b": normal(layers, features, scale=0.1),
    }
    shape = (microbatches, size, features)
    return params, normal(*shape), normal(*shape)


def large():
    """The same step as it might be trained, as shapes."""
    sizes = {"layers": 64, "microbatches": 32, "size": 2048, "features": 8192}
    return step, shapes(example_args, **sizes)


@sw.case(
    mesh={"stage": [1, 2, 4, 8]}, reference=reference, explain=large, explain_mesh={"stage": 16}
)
def pipeline():
    """Declare the program for `shardwise check`, `prove`, `inspect` and `explain`."""
    return step, example_args()


def main():
    meshes = [{"stage": size} for size in (1, 2, 8)]
    compare("Pipeline", step, reference, example_args(), meshes)


if __name__ == "__main__":
    main()
