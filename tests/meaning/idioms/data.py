"""Data parallelism: gradients, accumulation, masks, norms, noise."""

import jax
import jax.numpy as jnp
from jax import P, lax
from jax.flatten_util import ravel_pytree

from tests.support import booleans, integers, normal

from . import harder, production

MESH = {"data": 4}
W = {"in": normal(8, 16), "out": normal(16, 4)}
X, Y, LABELS = normal(16, 8), normal(16, 4), integers(16, low=0, high=4)
STEP = P(), P("data"), P("data")
KEY = jax.random.key(0)


def predict(w, x):
    return jnp.tanh(x @ w["in"]) @ w["out"]


def loss(w, x, y):
    return jnp.mean((predict(w, x) - y) ** 2)


def entropy(w, x, labels):
    scores = jax.nn.log_softmax(predict(w, x))
    return -jnp.take_along_axis(scores, labels[:, None], -1)[:, 0]


@production(MESH, STEP, P(), W, X, Y)
def gradient_of_the_mean_loss(w, x, y):
    return jax.value_and_grad(lambda w: lax.pmean(loss(w, x, y), "data"))(w)


@production(MESH, STEP, P(), W, X, Y, check_vma=False)
def mean_of_the_gradients(w, x, y):
    value, grads = jax.value_and_grad(loss)(w, x, y)
    return lax.pmean(value, "data"), lax.pmean(grads, "data")


@production(MESH, STEP, P(), W, X, LABELS)
def gradient_of_parameters_cast_to_varying(w, x, labels):
    w = jax.tree.map(lambda leaf: lax.pcast(leaf, "data", to="varying"), w)
    return lax.pmean(jax.grad(lambda w: entropy(w, x, labels).mean())(w), "data")


@production(MESH, STEP, P(), W, X, Y, check_vma=False)
def accumulation_over_microbatches_then_one_sum(w, x, y):
    def add(total, batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(w, *batch)), None

    batches = x.reshape(2, -1, 8), y.reshape(2, -1, 4)
    total, _ = lax.scan(add, jax.tree.map(jnp.zeros_like, w), batches)
    return jax.tree.map(lambda g: lax.pmean(g / 2, "data"), total)


@production(MESH, (P(), P("data"), P("data"), P("data")), P(), W, X, LABELS, booleans(16))
def masked_mean(w, x, labels, mask):
    total = lax.psum(jnp.sum(entropy(w, x, labels) * mask), "data")
    return total / jnp.maximum(lax.psum(mask.sum(), "data"), 1)


@production(MESH, STEP, P(), W, X, LABELS)
def accuracy(w, x, labels):
    hits = predict(w, x).argmax(-1) == labels
    return lax.psum(hits.sum(), "data") / lax.psum(hits.size, "data")


@production(MESH, (P("data"), P(), P()), (P("data"), P()), X, normal(8), normal(8, seed=1))
def batch_norm_with_synced_statistics(x, scale, bias):
    mean = lax.pmean(x.mean(0), "data")
    square = lax.pmean((x * x).mean(0), "data")
    variance = square - mean * mean
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + bias, (mean, variance)


@production(MESH, (P(), P("data"), P()), P("data"), W, X, KEY)
def dropout_of_a_key_for_each_example(w, x, key):
    rows = lax.axis_index("data") * x.shape[0] + jnp.arange(x.shape[0])
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(rows)
    keep = jax.vmap(lambda k: jax.random.bernoulli(k, 0.9, (16,)))(keys)
    return jnp.where(keep, jnp.tanh(x @ w["in"]) / 0.9, 0) @ w["out"]


@production(MESH, STEP, P(), W, X, LABELS)
def label_smoothing_and_weight_decay(w, x, labels):
    def total(w):
        scores = jax.nn.log_softmax(predict(w, x))
        wanted = 0.9 * jax.nn.one_hot(labels, 4) + 0.1 / 4
        decay = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(w))
        return lax.pmean(-(wanted * scores).sum(-1).mean(), "data") + 1e-3 * decay

    return jax.grad(total)(w)


@harder(MESH, (P(), P("data"), P("data"), P("data")), P(), W, X, LABELS, booleans(16))
def gradient_of_a_masked_mean(w, x, labels, mask):
    def total(w):
        tokens = lax.psum(mask.sum(), "data")
        return lax.psum(jnp.sum(jnp.where(mask, entropy(w, x, labels), 0)), "data") / tokens

    return jax.grad(total)(w)


@harder(MESH, STEP, P(), W, X, Y, check_vma=False)
def one_sum_of_all_gradients_as_one_array(w, x, y):
    flat, unravel = ravel_pytree(jax.grad(loss)(w, x, y))
    return unravel(lax.psum(flat, "data") / lax.axis_size("data"))


@harder(MESH, STEP, P(), W, X, Y, check_vma=False)
def accumulation_by_slices_in_a_counted_loop(w, x, y):
    def add(i, total):
        part = [lax.dynamic_slice_in_dim(v, i * 2, 2) for v in (x, y)]
        return jax.tree.map(jnp.add, total, jax.grad(loss)(w, *part))

    total = lax.fori_loop(0, x.shape[0] // 2, add, jax.tree.map(jnp.zeros_like, w))
    return jax.tree.map(lambda g: lax.pmean(g / (x.shape[0] // 2), "data"), total)


@harder(MESH, STEP, P(), W, X, Y, check_vma=False)
def gradients_clipped_for_each_example(w, x, y):
    def clipped(x, y):
        grads = jax.grad(loss)(w, x[None], y[None])
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda g: g * jnp.minimum(1, 1 / norm), grads)

    total = jax.tree.map(lambda g: g.sum(0), jax.vmap(clipped)(x, y))
    count = lax.psum(x.shape[0], "data")
    return jax.tree.map(lambda g: lax.psum(g, "data") / count, total)


@harder(MESH, STEP, P(), W, X, Y)
def gradients_with_a_scaled_loss(w, x, y):
    scale = 1024.0
    grads = jax.grad(lambda w: scale * lax.pmean(loss(w, x, y), "data"))(w)
    return jax.tree.map(lambda g: g / scale, grads)


@harder(MESH, (P("data"), P()), P(), X, normal(8, 4))
def gradient_through_synced_batch_norm(x, w):
    def total(w):
        h = x @ w
        mean = lax.pmean(h.mean(0), "data")
        variance = lax.pmean(((h - mean) ** 2).mean(0), "data")
        return lax.pmean(jnp.sin((h - mean) / jnp.sqrt(variance + 1e-5)).mean(), "data")

    return jax.grad(total)(w)


def plain_contrast(a, b):
    a, b = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (a, b))
    scores, own = 10 * a @ b.T, jnp.arange(len(a))
    rows, columns = jax.nn.log_softmax(scores, 1), jax.nn.log_softmax(scores, 0)
    return -(rows[own, own] + columns[own, own]).mean() / 2


@harder(MESH, (P("data"), P("data")), P(), X, normal(16, 8, seed=1), reference=plain_contrast)
def contrast_of_pairs_with_gathered_features(a, b):
    a, b = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (a, b))
    own = lax.axis_index("data") * len(a) + jnp.arange(len(a))

    def side(a, b):
        scores = 10 * a @ lax.all_gather(b, "data", tiled=True).T
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), own[:, None], 1).mean()

    return lax.pmean((side(a, b) + side(b, a)) / 2, "data")


@harder(MESH, STEP, P(), W, X, Y, check_vma=False)
def a_step_left_out_where_a_gradient_is_not_finite(w, x, y):
    grads = lax.pmean(jax.grad(loss)(w, x, y), "data")
    good = jnp.all(jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
    return jax.tree.map(lambda p, g: jnp.where(good, p - 0.1 * g, p), w, grads)


@harder(MESH, (P(), P("data"), P()), P(), normal(4, 8), X, KEY)
def diffusion_with_a_time_for_each_example(w, x, key):
    size = x.shape[0]
    times = jax.random.uniform(key, (size * lax.axis_size("data"),))
    noise = jax.random.normal(jax.random.fold_in(key, 1), (size * lax.axis_size("data"), 8))
    start = lax.axis_index("data") * size
    time = lax.dynamic_slice_in_dim(times, start, size)[:, None]
    noise = lax.dynamic_slice_in_dim(noise, start, size)
    noisy = jnp.sqrt(1 - time) * x + jnp.sqrt(time) * noise
    return lax.pmean(jnp.mean((jnp.tanh(noisy @ w.T) @ w - noise) ** 2), "data")


@harder(
    MESH, (P(None, "data"), P(), P()), P(None, "data"), normal(6, 8, 3), normal(3, 5), normal(5, 5)
)
def recurrent_network_over_a_split_batch(x, w, u):
    def cell(h, x):
        h = jnp.tanh(x @ w + h @ u)
        return h, h

    start = jnp.zeros_like(x[0] @ w)
    return lax.scan(cell, start, x)[1]
