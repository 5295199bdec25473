"""Optimizers whose state is split, and what happens to gradients on the way."""

import jax
import jax.numpy as jnp
from jax import P, lax
from jax.flatten_util import ravel_pytree

from tests.support import normal

from . import harder, production

DATA = {"data": 4}
W = {"in": normal(8, 16), "out": normal(16, 8)}
X, Y = normal(16, 8), normal(16, 8, seed=1)
MOMENTS = jax.tree.map(lambda w: (0.1 * w, w * w), W)
STEP = P(), P("data"), P("data")
ROWS = P("data")


def loss(w, x, y):
    return jnp.mean((jnp.tanh(x @ w["in"]) @ w["out"] - y) ** 2)


def adam(w, g, m, v, step=3):
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    update = m / (1 - 0.9**step) / (jnp.sqrt(v / (1 - 0.99**step)) + 1e-8)
    return w - 0.1 * update, m, v


def global_norm(tree):
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def gather(w, axis=0):
    return lax.all_gather(w, "data", axis=axis, tiled=True)


def scatter(g):
    return lax.psum_scatter(g, "data", tiled=True) / lax.axis_size("data")


def own(w):
    rows = len(w) // lax.axis_size("data")
    return lax.dynamic_slice_in_dim(w, lax.axis_index("data") * rows, rows)


@production(DATA, (P(), P(), *STEP[1:]), P(), W, MOMENTS, X, Y, check_vma=False)
def adam_step(w, moments, x, y):
    grads = lax.pmean(jax.grad(loss)(w, x, y), "data")
    return jax.tree.map(lambda w, g, mv: adam(w, g, *mv), w, grads, moments)


@production(DATA, STEP, P(), W, X, Y, check_vma=False)
def clipping_by_the_global_norm(w, x, y):
    grads = lax.pmean(jax.grad(loss)(w, x, y), "data")
    scale = jnp.minimum(1, 1 / global_norm(grads))
    return jax.tree.map(lambda w, g: w - 0.1 * scale * g, w, grads)


@production(DATA, (P(), P(), *STEP[1:]), P(), W, W, X, Y)
def average_of_parameters(w, average, x, y):
    grads = jax.grad(lambda w: lax.pmean(loss(w, x, y), "data"))(w)
    w = jax.tree.map(lambda w, g: w - 0.1 * g, w, grads)
    return w, jax.tree.map(lambda a, w: 0.99 * a + 0.01 * w, average, w)


@production(DATA, (ROWS, ROWS, ROWS), ROWS, W, X, Y, check_vma=False)
def fully_sharded_step(w, x, y):
    grads = jax.grad(lambda w: loss(jax.tree.map(gather, w), x, y))(w)
    return jax.tree.map(lambda w, g: w - 0.1 * g / lax.axis_size("data"), w, grads)


@production(DATA, (P(), ROWS, *STEP[1:]), (P(), ROWS), W, MOMENTS, X, Y, check_vma=False)
def split_optimizer_state(w, moments, x, y):
    """ZeRO: gradients are scattered, rows updated and gathered."""
    grads = jax.tree.map(scatter, jax.grad(loss)(w, x, y))
    new = jax.tree.map(lambda w, g, mv: adam(own(w), g, *mv), w, grads, moments)
    leaf = lambda v: isinstance(v, tuple)  # noqa: E731
    return (
        jax.tree.map(lambda v: gather(v[0]), new, is_leaf=leaf),
        jax.tree.map(lambda v: v[1:], new, is_leaf=leaf),
    )


LAYERS = normal(3, 8, 8)


@production(DATA, (P(None, "data"), ROWS), P(None, "data"), LAYERS, X, check_vma=False)
def fully_sharded_layers_by_scan(layers, x):
    @jax.checkpoint
    def layer(x, w):
        return x + jnp.tanh(x @ gather(w)), None

    grads = jax.grad(lambda w: jnp.mean(lax.scan(layer, x, w)[0] ** 2))(layers)
    return layers - 0.1 * grads / lax.axis_size("data")


@harder(DATA, (ROWS, ROWS), ROWS, W, W)
def clipping_by_the_norm_of_split_gradients(w, grads):
    norm = jnp.sqrt(lax.psum(global_norm(grads) ** 2, "data"))
    return jax.tree.map(lambda w, g: w - 0.1 * g * jnp.minimum(1, 1 / norm), w, grads)


@harder(
    DATA,
    (ROWS, P(), ROWS, P()),
    (ROWS, P()),
    normal(8, 4),
    normal(5),
    normal(8, 4, seed=1),
    normal(5, seed=1),
)
def clipping_where_some_gradients_are_split(w, b, gw, gb):
    norm = jnp.sqrt(lax.psum(jnp.sum(gw**2), "data") + jnp.sum(gb**2))
    scale = jnp.where(norm > 1, 1 / norm, 1)
    return w - scale * gw, b - scale * gb


@harder(
    DATA,
    (ROWS, ROWS, ROWS, P()),
    (ROWS, ROWS, P()),
    normal(8, 6),
    normal(8, 6, seed=1),
    normal(8) ** 2,
    normal(6) ** 2,
)
def adafactor_of_split_rows(w, g, rows, columns):
    square = g * g + 1e-30
    rows = 0.9 * rows + 0.1 * square.mean(1)
    columns = 0.9 * columns + 0.1 * lax.pmean(square.mean(0), "data")
    mean = lax.pmean(rows.mean(), "data")
    update = g * lax.rsqrt(rows[:, None] / mean) * lax.rsqrt(columns)
    size = lax.psum(jnp.sum(update**2), "data") / (update.size * lax.axis_size("data"))
    return w - 0.1 * update / jnp.maximum(1, jnp.sqrt(size)), rows, columns


@harder(
    DATA,
    (P(None, "data"),) * 3 + (P("data"),),
    P(None, "data"),
    normal(6, 8),
    normal(6, 8, seed=1),
    normal(6, 1) ** 2 * jnp.ones((6, 8)),
    normal(8) ** 2,
)
def second_moment_of_split_columns(w, g, slow, columns):
    rows = lax.pmean((g * g).mean(1), "data")
    own = 0.5 * columns + 0.5 * (g * g).mean(0)
    estimate = rows[:, None] * own / rows.mean()
    return w - 0.1 * g / (jnp.sqrt(estimate + slow) + 1e-8)


@harder(DATA, (ROWS, ROWS), ROWS, W, W)
def trust_ratio_of_split_parameters(w, grads):
    def step(w, g):
        ratio = jnp.sqrt(lax.psum(jnp.sum(w * w), "data")) / jnp.sqrt(
            lax.psum(jnp.sum(g * g), "data")
        )
        return w - 0.1 * ratio * g

    return jax.tree.map(step, w, grads)


@harder(DATA, STEP, P(), W, X, Y, check_vma=False)
def sign_of_the_mean_gradient(w, x, y):
    grads = lax.pmean(jax.grad(loss)(w, x, y), "data")
    return jax.tree.map(lambda w, g: w - 0.1 * jnp.sign(g), w, grads)


def quantized_sum(parts):
    scale = jnp.abs(parts).max() / 127
    return jnp.round(parts / scale).astype(jnp.int8).astype(jnp.int32).sum(0) * scale


@harder(DATA, ROWS, P(), normal(16, 8), reference=quantized_sum)
def gradients_of_eight_bits_with_a_shared_scale(parts):
    scale = lax.pmax(jnp.abs(parts).max(), "data") / 127
    small = jnp.round(parts / scale).astype(jnp.int8)
    return lax.psum(small.astype(jnp.int32).sum(0), "data") * scale


HOSTS = {"host": 2, "device": 4}


@harder(
    HOSTS, P(("host", "device")), P(), normal(8, 16), reference=lambda x: x.sum(0), check_vma=False
)
def sum_in_two_levels(parts):
    part = lax.psum_scatter(parts.sum(0), "device", tiled=True)
    return lax.all_gather(lax.psum(part, "host"), "device", tiled=True)


@harder(
    HOSTS,
    (P(None, "device"), P(("host", "device"))),
    P(None, "device"),
    normal(8, 8),
    normal(16, 8),
    check_vma=False,
)
def sharded_within_hosts_and_copied_between(w, x):
    grads = jax.grad(
        lambda w: jnp.mean(jnp.sin(x @ lax.all_gather(w, "device", axis=1, tiled=True)))
    )(w)
    return w - 0.1 * lax.pmean(grads, "host") / lax.axis_size("device")


@harder(DATA, STEP, P(), W, X, Y, check_vma=False)
def flat_rows_that_are_padded(w, x, y):
    flat, unravel = ravel_pytree(w)
    size = lax.axis_size("data")
    pad = -flat.size % (size * 24)
    grads = jnp.pad(ravel_pytree(jax.grad(loss)(w, x, y))[0], (0, pad))
    new = own(jnp.pad(flat, (0, pad))) - 0.1 * scatter(grads)
    return unravel(gather(new)[: flat.size])


def newton_schulz(g):
    x = g / jnp.linalg.norm(g)
    for _ in range(3):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


@harder(
    DATA,
    (ROWS, ROWS),
    ROWS,
    normal(8, 6),
    normal(8, 6, seed=1),
    reference=lambda w, g: w - 0.1 * newton_schulz(g),
    check_vma=False,
)
def orthogonal_update_of_gathered_rows(w, g):
    return w - 0.1 * own(newton_schulz(gather(g)))


@harder(DATA, ROWS, ROWS, normal(8, 5, 6), reference=jax.vmap(newton_schulz))
def orthogonal_updates_of_split_layers(g):
    return jax.vmap(newton_schulz)(g)


@harder(DATA, (ROWS, ROWS), ROWS, normal(8, 5, 5), normal(8, 5, 6))
def preconditioners_of_split_layers(statistics, grads):
    precondition = jnp.einsum("lij,lkj->lik", statistics, statistics) + jnp.eye(5)
    return jnp.linalg.solve(precondition, grads)


@harder(DATA, (P(), P(), *STEP[1:]), (P(), P()), W, W, X, Y, check_vma=False)
def momentum_that_looks_ahead(w, momentum, x, y):
    grads = lax.pmean(jax.grad(loss)(w, x, y), "data")
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda w, m, g: w - 0.1 * (0.9 * m + g), w, momentum, grads), momentum


@harder(DATA, (P(), ROWS, ROWS), P(), W, X, Y, check_vma=False)
def steps_of_a_scan_over_batches(w, x, y):
    def step(w, batch):
        grads = lax.pmean(jax.grad(loss)(w, *batch), "data")
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads), None

    copies = jnp.stack([x, x + 1, x - 1]), jnp.stack([y, y, y])
    return lax.scan(step, w, copies)[0]
