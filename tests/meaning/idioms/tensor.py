"""Tensor parallelism: weights split over the devices, alone and beside other axes."""

import jax
import jax.numpy as jnp
from jax import P, lax

from tests.support import normal

from . import harder, production

MODEL = {"model": 4}
BOTH = {"data": 2, "model": 2}
X = normal(8, 16)
UP, DOWN, BIAS = normal(16, 32), normal(32, 16), normal(16)
HEADS = normal(16, 4, 8), normal(16, 4, 8, seed=1), normal(16, 4, 8, seed=2), normal(4, 8, 16)
TEXT = normal(2, 6, 16)


def attention(x, q, k, v, out, causal=True):
    """Attention of the heads that a device has, not added up over them."""
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, w) for w in (q, k, v))
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / jnp.sqrt(q.shape[-1])
    if causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(mask, scores, -1e9)
    mixed = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), v)
    return jnp.einsum("bthk,hkd->btd", mixed, out)


def norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


COLUMN_ROW = P(), P(None, "model"), P("model"), P()


@production(MODEL, COLUMN_ROW, P(), X, UP, DOWN, BIAS)
def column_then_row(x, up, down, bias):
    return lax.psum(jax.nn.gelu(x @ up) @ down, "model") + bias


SPLIT_HEADS = (P(None, "model"),) * 3 + (P("model"),)


@production(MODEL, (P(), *SPLIT_HEADS), P(), TEXT, *HEADS)
def heads_split_over_devices(x, q, k, v, out):
    return lax.psum(attention(x, q, k, v, out), "model")


@production(
    MODEL,
    (P(), *SPLIT_HEADS, P(), P(), *COLUMN_ROW[1:3]),
    P(),
    TEXT,
    *HEADS,
    normal(16),
    normal(16, seed=1),
    UP,
    DOWN,
)
def transformer_block(x, q, k, v, out, first, second, up, down):
    x = x + lax.psum(attention(norm(x, first), q, k, v, out), "model")
    return x + lax.psum(jax.nn.silu(norm(x, second) @ up) @ down, "model")


@production(
    BOTH,
    (P(None, "model"), P("model"), P("data"), P("data")),
    (P(None, "model"), P("model")),
    UP,
    DOWN,
    X,
    normal(8, 16, seed=1),
)
def training_step_on_data_and_model(up, down, x, y):
    def loss(up, down):
        h = lax.psum(jnp.tanh(x @ up) @ down, "model")
        return lax.pmean(jnp.mean((h - y) ** 2), "data")

    grads = jax.grad(loss, (0, 1))(up, down)
    return up - 0.1 * grads[0], down - 0.1 * grads[1]


@production(
    MODEL,
    (P("model"), P(), P(None, "model"), P("model")),
    P("model"),
    X,
    normal(16),
    UP,
    DOWN,
    check_vma=False,
)
def sequence_parallel_norm_then_column_row(x, scale, up, down):
    whole = lax.all_gather(norm(x, scale), "model", tiled=True)
    return x + lax.psum_scatter(jax.nn.gelu(whole @ up) @ down, "model", tiled=True)


@harder(MODEL, COLUMN_ROW, P(), X, UP, DOWN, BIAS)
def bias_divided_before_the_sum(x, up, down, bias):
    return lax.psum(jax.nn.relu(x @ up) @ down + bias / lax.axis_size("model"), "model")


@harder(MODEL, COLUMN_ROW, P(), X, UP, DOWN, BIAS)
def bias_added_by_the_first_device(x, up, down, bias):
    first = lax.axis_index("model") == 0
    return lax.psum(jax.nn.relu(x @ up) @ down + jnp.where(first, bias, 0), "model")


@harder(
    MODEL,
    (P(), P(None, "model"), P(None, "model"), P("model")),
    P(),
    X,
    UP,
    normal(16, 32, seed=1),
    DOWN,
)
def gated_layer_and_its_gradient(x, gate, up, down):
    def f(x):
        h = jax.nn.silu(x @ gate) * (x @ up)
        return jnp.sum(jnp.sin(lax.psum(h @ down, "model")))

    return jax.grad(f)(x)


@harder(
    MODEL, (P(), P(), P(), P(None, "model")), P(None, "model"), X, normal(16, 2), normal(2, 32), UP
)
def low_rank_adapter_of_split_columns(x, a, b, w):
    own = w.shape[1]
    part = lax.dynamic_slice_in_dim(b, lax.axis_index("model") * own, own, axis=1)
    return x @ w + 2.0 * (x @ a) @ part


@harder(MODEL, (P(), P(None, "model"), P(None), P(None)), P(None, None, "model"), TEXT, *HEADS[:3])
def grouped_queries_share_keys(x, q, k, v):
    q = jnp.einsum("btd,dhk->bthk", x, q)
    k, v = (jnp.einsum("btd,dhk->bthk", x, w[:, :1]) for w in (k, v))
    k, v = (jnp.repeat(w, q.shape[2], 2) for w in (k, v))
    scores = jnp.einsum("bthk,bshk->bhts", q, k)
    return jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), v)


CACHE = normal(2, 10, 4, 8)
SPLIT = P(None, None, "model")


@harder(
    MODEL,
    (SPLIT, SPLIT, P(None, "model"), P(None, "model"), P()),
    (P(None, "model"), SPLIT, SPLIT),
    CACHE,
    CACHE + 1,
    normal(2, 4, 8),
    normal(2, 4, 8, seed=1),
    jnp.int32(6),
)
def decoding_with_a_cache_of_split_heads(keys, values, q, new, position):
    keys = lax.dynamic_update_slice_in_dim(keys, new[:, None], position, axis=1)
    values = lax.dynamic_update_slice_in_dim(values, 2 * new[:, None], position, axis=1)
    scores = jnp.einsum("bhk,bshk->bhs", q, keys)
    scores = jnp.where(jnp.arange(10) <= position, scores, -jnp.inf)
    return jnp.einsum("bhs,bshk->bhk", jax.nn.softmax(scores), values), keys, values


@harder(
    MODEL,
    (P(), P(None, None, "model"), P(None, "model")),
    P(),
    X,
    normal(3, 16, 32),
    normal(3, 32, 16),
    check_vma=False,
)
def gradient_of_a_scan_over_split_layers(x, ups, downs):
    @jax.remat
    def layer(x, w):
        return x + lax.psum(jnp.tanh(x @ w[0]) @ w[1], "model"), None

    return lax.scan(layer, x, (ups, downs))[0]


@harder(MODEL, (P(), P(None, "model"), P("model")), P(), X, UP, normal(32))
def norm_of_split_features(x, w, scale):
    h = x @ w
    size = h.shape[-1] * lax.axis_size("model")
    mean = lax.psum(h.sum(-1, keepdims=True), "model") / size
    variance = lax.psum(((h - mean) ** 2).sum(-1, keepdims=True), "model") / size
    return lax.psum(((h - mean) * lax.rsqrt(variance + 1e-6)) @ scale, "model")


@harder(BOTH, (P("data", "model"), P("model", None)), P("data"), X, normal(16, 8))
def rows_and_contraction_split(x, w):
    return lax.psum(x @ w, "model")


def plain_product(x, w):
    return x @ w


@harder(
    BOTH,
    (P("data", "model"), P("data", "model")),
    P("data", "model"),
    X,
    normal(16, 8),
    reference=plain_product,
    check_vma=False,
)
def product_on_a_grid_of_gathered_blocks(x, w):
    rows = lax.all_gather(x, "model", axis=1, tiled=True)
    return rows @ lax.all_gather(w, "data", axis=0, tiled=True)


@harder(
    {"model": 4},
    (P("model"), P(None, "model")),
    P(None, "model"),
    normal(8, 16),
    normal(16, 8),
    reference=plain_product,
    check_vma=False,
)
def product_while_gathering_round_a_ring(x, w):
    size, me, rows = lax.axis_size("model"), lax.axis_index("model"), x.shape[0]
    out = jnp.zeros((rows * size, w.shape[1]))
    for step in range(size):
        out = lax.dynamic_update_slice(out, x @ w, ((me - step) % size * rows, 0))
        x = lax.ppermute(x, "model", [(i, (i + 1) % size) for i in range(size)])
    return out


@harder(
    {"model": 4},
    (P(None, "model"), P("model")),
    P("model"),
    normal(8, 16),
    normal(16, 8),
    reference=plain_product,
    check_vma=False,
)
def product_while_scattering_round_a_ring(x, w):
    size, me = lax.axis_size("model"), lax.axis_index("model")
    rows = x.shape[0] // size
    part = lambda i: lax.dynamic_slice_in_dim(x, i % size * rows, rows) @ w  # noqa: E731
    total = part(me - 1)
    for step in range(2, size + 1):
        total = lax.ppermute(total, "model", [(i, (i + 1) % size) for i in range(size)])
        total = total + part(me - step)
    return total
