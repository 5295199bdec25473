"""Stages on different devices."""

import jax
import jax.numpy as jnp
from jax import P, lax

from tests.support import normal

from . import harder, production

STAGES = {"stage": 4}
WEIGHTS, BATCHES, TARGETS = normal(4, 6, 6), normal(3, 2, 6), normal(3, 2, 6, seed=1)


def layer(w, x):
    return x + jnp.tanh(x @ w)


def plain(weights, batches):
    for w in weights:
        batches = layer(w, batches)
    return batches


def apply(weights, x):
    return lax.scan(lambda x, w: (layer(w, x), None), x, weights)[0]


def last():
    return lax.axis_index("stage") == lax.axis_size("stage") - 1


def onward(x, around=False):
    size = lax.axis_size("stage")
    return lax.ppermute(x, "stage", [(i, (i + 1) % size) for i in range(size - 1 + around)])


def gpipe(weights, batches):
    """Outputs of the last stage for each microbatch, zeros on the other devices."""
    size, count = lax.axis_size("stage"), len(batches)
    state, outs = jnp.zeros_like(batches[0]), jnp.zeros_like(batches)
    for step in range(size + count - 1):
        fed = jnp.where(lax.axis_index("stage") == 0, batches[min(step, count - 1)], state)
        state = apply(weights, fed)
        if step >= size - 1:
            outs = outs.at[step - size + 1].set(state)
        state = onward(state)
    return jnp.where(last(), outs, 0)


@production(STAGES, (P("stage"), P()), P(), WEIGHTS, BATCHES, reference=plain, check_vma=False)
def gpipe_forward(weights, batches):
    return lax.psum(gpipe(weights, batches), "stage")


@production(STAGES, (P("stage"), P()), P(), WEIGHTS, BATCHES, check_vma=False)
def gpipe_by_scan(weights, batches):
    size, count = lax.axis_size("stage"), len(batches)

    def step(state, i):
        fed = jnp.where(lax.axis_index("stage") == 0, batches[jnp.minimum(i, count - 1)], state)
        done = apply(weights, fed)
        return onward(done), done

    _, done = lax.scan(step, jnp.zeros_like(batches[0]), jnp.arange(size + count - 1))
    return lax.psum(jnp.where(last(), done[size - 1 :], 0), "stage")


def plain_loss(weights, batches, targets):
    return jax.grad(lambda w: jnp.mean((plain(w, batches) - targets) ** 2))(weights)


@harder(STAGES, (P("stage"), P(), P()), P("stage"), WEIGHTS, BATCHES, TARGETS, reference=plain_loss)
def gpipe_gradient(weights, batches, targets):
    def loss(weights):
        size, count = lax.axis_size("stage"), len(batches)
        state = lax.pcast(jnp.zeros_like(batches[0]), "stage", to="varying")
        total = 0.0
        for step in range(size + count - 1):
            fed = jnp.where(lax.axis_index("stage") == 0, batches[min(step, count - 1)], state)
            state = apply(weights, fed)
            if step >= size - 1:
                error = jnp.mean((state - targets[step - size + 1]) ** 2)
                total = total + jnp.where(last(), error, 0) / count
            state = onward(state)
        return lax.psum(total, "stage")

    return jax.grad(loss)(weights)


def plain_chunks(weights, batches):
    return plain(weights.reshape(8, 6, 6), batches)


@harder(
    STAGES,
    (P(None, "stage"), P()),
    P(),
    normal(2, 4, 6, 6),
    BATCHES,
    reference=plain_chunks,
    check_vma=False,
)
def interleaved_stages(weights, batches):
    """Each device has a layer of each half: the batches go round twice."""
    for chunk in weights:
        batches = lax.psum(gpipe(chunk, batches), "stage")
    return batches


@harder(
    STAGES,
    (P(None, "stage"), P()),
    P(),
    normal(2, 4, 6, 6),
    normal(2, 6),
    reference=plain_chunks,
    check_vma=False,
)
def a_batch_that_goes_round_twice(weights, x):
    size = lax.axis_size("stage")
    for step in range(2 * size):
        done = apply(weights[step // size], x)
        x = onward(done, around=True)
    return lax.psum(jnp.where(lax.axis_index("stage") == 0, x, 0), "stage")


@harder(
    {"data": 2, "stage": 4},
    (P("stage"), P(None, "data")),
    P(None, "data"),
    WEIGHTS,
    BATCHES,
    reference=plain,
    check_vma=False,
)
def stages_beside_data(weights, batches):
    return lax.psum(gpipe(weights, batches), "stage")


@harder(STAGES, (P("stage"), P(), P()), P(), WEIGHTS, BATCHES, normal(6, 3), check_vma=False)
def output_layer_on_the_last_stage(weights, batches, out):
    scores = lax.cond(
        last(), lambda h: h @ out, lambda h: jnp.zeros((3, 2, 3)), gpipe(weights, batches)
    )
    return lax.psum(jax.nn.relu(scores), "stage")


@harder(STAGES, (P("stage"), P()), P(), WEIGHTS, BATCHES[0], reference=plain)
def layers_gathered_as_they_are_used(weights, x):
    for i in range(lax.axis_size("stage")):
        mine = jnp.where(lax.axis_index("stage") == i, weights, 0)
        x = apply(lax.psum(mine, "stage"), x)
    return x
