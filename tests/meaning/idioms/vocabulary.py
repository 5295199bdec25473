"""A vocabulary split over the devices: embeddings, losses, samples."""

import jax
import jax.numpy as jnp
from jax import P, lax

from tests.support import integers, normal

from . import harder, production

MODEL = {"model": 4}
TABLE, IDS = normal(16, 8), integers(12, low=0, high=16)
HIDDEN, LABELS = normal(12, 8), integers(12, low=0, high=16)
LOGITS = normal(12, 16)
SCORES = P(None, "model"), P()
LOSS = P(), P("model"), P()


def first(rows):
    """The first row of the vocabulary that this device has."""
    return lax.axis_index("model") * rows


def own_score(logits, labels):
    """The score of the label, from the device that has it."""
    local = labels - first(logits.shape[-1])
    mine = (local >= 0) & (local < logits.shape[-1])
    score = jnp.take_along_axis(logits, jnp.where(mine, local, 0)[:, None], -1)[:, 0]
    return lax.psum(jnp.where(mine, score, 0), "model")


def entropy(logits, labels):
    top = lax.pmax(lax.stop_gradient(logits).max(-1), "model")
    total = lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "model")
    return jnp.log(total) + top - own_score(logits, labels)


def plain_logsumexp(logits, labels):
    own = jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
    return jax.nn.logsumexp(logits, -1) - own


def plain_one_hot(logits, labels):
    return -(jax.nn.one_hot(labels, 16) * jax.nn.log_softmax(logits)).sum(-1)


@production(MODEL, (P("model"), P()), P(), TABLE, IDS)
def embedding_of_rows_in_range(table, ids):
    local = ids - first(table.shape[0])
    mine = (local >= 0) & (local < table.shape[0])
    rows = jnp.where(mine[:, None], table[jnp.where(mine, local, 0)], 0)
    return lax.psum(rows, "model")


@production(MODEL, SCORES, P(), LOGITS, LABELS)
def cross_entropy(logits, labels):
    return entropy(logits, labels).mean()


@harder(MODEL, SCORES, P(), LOGITS, LABELS, reference=plain_logsumexp)
def cross_entropy_against_logsumexp(logits, labels):
    return entropy(logits, labels)


@harder(MODEL, SCORES, P(), LOGITS, LABELS, reference=plain_one_hot)
def cross_entropy_against_log_softmax_of_one_hot(logits, labels):
    return entropy(logits, labels)


@harder(
    MODEL,
    SCORES,
    P(),
    LOGITS,
    LABELS,
    reference=lambda logits, labels: (
        jnp.log(jnp.exp(logits).sum(-1)) - jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
    ),
)
def cross_entropy_without_a_maximum(logits, labels):
    return jnp.log(lax.psum(jnp.exp(logits).sum(-1), "model")) - own_score(logits, labels)


@harder(MODEL, LOSS, (P(), P("model")), HIDDEN, TABLE, LABELS)
def gradients_of_the_cross_entropy(hidden, table, labels):
    return jax.grad(lambda h, t: entropy(h @ t.T, labels).mean(), (0, 1))(hidden, table)


@harder(MODEL, LOSS, P(), HIDDEN, TABLE, LABELS)
def cross_entropy_with_smoothing_and_z_loss(hidden, table, labels):
    logits = hidden @ table.T
    top = lax.pmax(lax.stop_gradient(logits).max(-1), "model")
    log_z = jnp.log(lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "model")) + top
    mean = lax.psum(logits.sum(-1), "model") / lax.psum(logits.shape[-1], "model")
    loss = log_z - 0.9 * own_score(logits, labels) - 0.1 * mean
    return (loss + 1e-4 * log_z**2).mean()


@harder(MODEL, LOSS, P(), HIDDEN, TABLE, LABELS, check_vma=False)
def cross_entropy_in_chunks_of_tokens(hidden, table, labels):
    def chunk(total, batch):
        h, own = batch
        return total + entropy(h @ table.T, own).sum(), None

    total, _ = lax.scan(chunk, jnp.zeros(()), (hidden.reshape(3, 4, 8), labels.reshape(3, 4)))
    return total / 12


@harder(
    {"data": 2, "model": 2},
    (P("data"), P("model"), P("data"), P("data")),
    P(),
    HIDDEN,
    TABLE,
    LABELS,
    integers(12, low=0, high=2),
)
def perplexity_of_unmasked_tokens(hidden, table, labels, mask):
    losses = entropy(hidden @ table.T, labels) * mask
    return jnp.exp(lax.psum(losses.sum(), "data") / lax.psum(mask.sum(), "data"))


@harder(
    MODEL,
    P(None, "model"),
    P(),
    LOGITS,
    reference=lambda x: jax.nn.logsumexp(x, -1),
    check_vma=False,
)
def logsumexp_of_gathered_logsumexps(logits):
    parts = lax.all_gather(jax.nn.logsumexp(logits, -1), "model")
    return jax.nn.logsumexp(parts, 0)


@harder(
    MODEL, P(None, "model"), P(None, "model"), LOGITS, reference=lambda x: jax.nn.softmax(x / 0.7)
)
def softmax_that_stays_split(logits):
    scaled = logits / 0.7
    top = lax.pmax(scaled.max(-1, keepdims=True), "model")
    weights = jnp.exp(scaled - top)
    return weights / lax.psum(weights.sum(-1, keepdims=True), "model")


@harder(MODEL, (P("model"), P()), P(), TABLE, IDS, reference=lambda t, i: t[i])
def embedding_by_quotient_and_remainder(table, ids):
    rows = table.shape[0]
    mine = ids // rows == lax.axis_index("model")
    return lax.psum(jnp.where(mine[:, None], table[ids % rows], 0), "model")


@harder(MODEL, (P("model"), P()), P(), TABLE, IDS, reference=lambda t, i: t[i])
def embedding_that_fills_rows_of_others_with_zeros(table, ids):
    rows = table.shape[0]
    local = ids - first(rows)
    local = jnp.where(local < 0, rows, local)
    return lax.psum(table.at[local].get(mode="fill", fill_value=0), "model")


@harder(MODEL, (P("model"), P()), P(), TABLE, IDS, reference=lambda t, i: t[i])
def embedding_by_a_product_with_one_hot(table, ids):
    hot = ids[:, None] == first(table.shape[0]) + jnp.arange(table.shape[0])
    return lax.psum(hot.astype(table.dtype) @ table, "model")


@harder(MODEL, (P("model"), P(), P()), P("model"), TABLE, IDS, LABELS)
def gradient_of_a_tied_table(table, ids, labels):
    def loss(table):
        local = ids - first(table.shape[0])
        mine = (local >= 0) & (local < table.shape[0])
        rows = jnp.where(mine[:, None], table[jnp.where(mine, local, 0)], 0)
        return entropy(jnp.tanh(lax.psum(rows, "model")) @ table.T, labels).mean()

    return jax.grad(loss)(table)


@harder(MODEL, P(None, "model"), P(), LOGITS, reference=lambda x: x.argmax(-1), check_vma=False)
def argmax_of_gathered_candidates(logits):
    best = logits.argmax(-1)
    values = lax.all_gather(logits.max(-1), "model")
    places = lax.all_gather(best + first(logits.shape[-1]), "model")
    winner = values.argmax(0)
    return jnp.take_along_axis(places, winner[None], 0)[0]


@harder(MODEL, P(None, "model"), P(), LOGITS, reference=lambda x: x.argmax(-1))
def argmax_as_the_smallest_place_of_the_maximum(logits):
    top = lax.pmax(logits.max(-1), "model")
    places = first(logits.shape[-1]) + jnp.arange(logits.shape[-1])
    found = jnp.where(logits == top[:, None], places, jnp.iinfo(jnp.int32).max)
    return lax.pmin(found.min(-1), "model")


@harder(
    MODEL,
    P(None, "model"),
    P(),
    LOGITS,
    reference=lambda x: tuple(lax.top_k(x, 3)),
    check_vma=False,
)
def top_k_of_gathered_candidates(logits):
    values, places = lax.top_k(logits, 3)
    values = lax.all_gather(values, "model", axis=1, tiled=True)
    places = lax.all_gather(places + first(logits.shape[-1]), "model", axis=1, tiled=True)
    values, chosen = lax.top_k(values, 3)
    return values, jnp.take_along_axis(places, chosen, 1)


def plain_sample(logits, key):
    return (logits + jax.random.gumbel(key, (12, 16))).argmax(-1)


@harder(
    MODEL,
    (P(None, "model"), P()),
    P(),
    LOGITS,
    jax.random.key(3),
    reference=plain_sample,
    check_vma=False,
)
def sample_by_gumbel_noise(logits, key):
    noise = jax.random.gumbel(key, (12, 16))
    size = logits.shape[-1]
    noisy = logits + lax.dynamic_slice_in_dim(noise, first(size), size, axis=1)
    values = lax.all_gather(noisy.max(-1), "model")
    places = lax.all_gather(noisy.argmax(-1) + first(size), "model")
    return jnp.take_along_axis(places, values.argmax(0)[None], 0)[0]


@harder(MODEL, SCORES, P(), LOGITS, LABELS)
def tokens_whose_label_scores_highest(logits, labels):
    top = lax.pmax(logits.max(-1), "model")
    return lax.psum((own_score(logits, labels) >= top).mean(), "model") / lax.axis_size("model")
