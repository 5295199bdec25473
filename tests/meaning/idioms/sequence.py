"""A sequence split over the devices: attention, positions, running sums."""

import jax
import jax.numpy as jnp
from jax import P, lax

from tests.support import integers, normal

from . import harder, production

SEQ = {"seq": 4}
SPLIT = P(None, "seq")
Q, K, V = (normal(2, 8, 4, 8, seed=s) for s in range(3))
TEXT = normal(2, 8, 16)


def softmax_attention(q, k, v, mask=None):
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / jnp.sqrt(q.shape[-1])
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)


def causal_attention(q, k, v):
    return softmax_attention(q, k, v, jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool)))


def positions(size):
    return lax.axis_index("seq") * size + jnp.arange(size)


def send(x, step=1):
    size = lax.axis_size("seq")
    return lax.ppermute(x, "seq", [(i, (i + step) % size) for i in range(size)])


def from_before(x):
    """What the device before has; zeros on the first device."""
    return lax.ppermute(x, "seq", [(i, i + 1) for i in range(lax.axis_size("seq") - 1)])


def from_behind(x):
    return lax.ppermute(x, "seq", [(i + 1, i) for i in range(lax.axis_size("seq") - 1)])


def update(state, q, k, v, mask=None):
    """Take a block of keys into a running softmax."""
    out, total, top = state
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / jnp.sqrt(q.shape[-1])
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    new = jnp.maximum(top, scores.max(-1))
    weights, scale = jnp.exp(scores - new[..., None]), jnp.exp(top - new)
    out = out * scale[..., None] + jnp.einsum("bhts,bshd->bhtd", weights, v)
    return out, total * scale + weights.sum(-1), new


def start(q):
    b, t, h, d = q.shape
    return jnp.zeros((b, h, t, d)), jnp.zeros((b, h, t)), jnp.full((b, h, t), -jnp.inf)


def finish(state):
    return jnp.moveaxis(state[0] / state[1][..., None], 1, 2)


def ring(q, k, v, causal=False):
    size, me, local = lax.axis_size("seq"), lax.axis_index("seq"), q.shape[1]
    state = start(q)
    for step in range(size):
        mask = None
        if causal:
            here = (me - step) % size * local + jnp.arange(local)
            mask = positions(local)[:, None] >= here
        state = update(state, q, k, v, mask)
        k, v = send((k, v))
    return finish(state)


@production(SEQ, (SPLIT,) * 3, SPLIT, Q, K, V, check_vma=False)
def ring_attention(q, k, v):
    return ring(q, k, v)


@production(SEQ, (SPLIT,) * 3, SPLIT, Q, K, V, reference=causal_attention, check_vma=False)
def causal_attention_to_gathered_keys(q, k, v):
    k, v = (lax.all_gather(x, "seq", axis=1, tiled=True) for x in (k, v))
    mask = positions(q.shape[1])[:, None] >= jnp.arange(k.shape[1])
    return softmax_attention(q, k, v, mask)


def exchanged(attend, q, k, v):
    """Ulysses: heads are split where the sequence was, and back."""
    q, k, v = (lax.all_to_all(x, "seq", 2, 1, tiled=True) for x in (q, k, v))
    return lax.all_to_all(attend(q, k, v), "seq", 1, 2, tiled=True)


@production(SEQ, (SPLIT,) * 3, SPLIT, Q, K, V, reference=causal_attention)
def heads_exchanged_for_sequence(q, k, v):
    return exchanged(causal_attention, q, k, v)


@harder(SEQ, (SPLIT,) * 3, SPLIT, Q, K, V, reference=softmax_attention, check_vma=False)
def ring_attention_against_softmax(q, k, v):
    return ring(q, k, v)


@harder(SEQ, (SPLIT,) * 3, SPLIT, Q, K, V, reference=causal_attention, check_vma=False)
def causal_ring_attention(q, k, v):
    return ring(q, k, v, causal=True)


@harder(SEQ, (SPLIT,) * 3, SPLIT, Q, K, V, check_vma=False)
def ring_attention_by_scan(q, k, v):
    def step(carry, _):
        state, k, v = carry
        return (update(state, q, k, v), *send((k, v))), None

    (state, _, _), _ = lax.scan(step, (start(q), k, v), None, lax.axis_size("seq"))
    return finish(state)


@harder(SEQ, (SPLIT,) * 3, (SPLIT,) * 3, Q, K, V, check_vma=False)
def gradients_of_ring_attention(q, k, v):
    return jax.grad(lambda *a: jnp.sum(jnp.sin(ring(*a))), (0, 1, 2))(q, k, v)


@harder(SEQ, (SPLIT,) * 3, (SPLIT,) * 3, Q, K, V)
def gradients_where_heads_are_exchanged(q, k, v):
    f = lambda *a: jnp.sum(jnp.sin(exchanged(softmax_attention, *a)))  # noqa: E731
    return jax.grad(f, (0, 1, 2))(q, k, v)


HEADS = P(None, None, "seq")


@harder(SEQ, (HEADS,) * 3, HEADS, Q, K, V, reference=softmax_attention, check_vma=False)
def online_softmax_over_blocks_of_keys(q, k, v):
    blocks = [jnp.moveaxis(x.reshape(2, 4, 2, *x.shape[2:]), 1, 0) for x in (k, v)]
    state, _ = lax.scan(lambda state, b: (update(state, q, *b), None), start(q), tuple(blocks))
    return finish(state)


@harder(SEQ, (P(), SPLIT, SPLIT), P(), Q[:, :1], K, V, reference=softmax_attention)
def one_query_over_a_split_cache(q, k, v):
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / jnp.sqrt(q.shape[-1])
    top = lax.pmax(scores.max(-1), "seq")
    weights = jnp.exp(scores - top[..., None])
    total = lax.psum(weights.sum(-1), "seq")
    out = lax.psum(jnp.einsum("bhts,bshd->bhtd", weights, v), "seq")
    return jnp.moveaxis(out / total[..., None], 1, 2)


@harder(SEQ, (SPLIT,) * 3, SPLIT, Q, K, V)
def linear_attention(q, k, v):
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    state = lax.psum(jnp.einsum("bshd,bshe->bhde", k, v), "seq")
    norm = lax.psum(k.sum(1), "seq")
    return jnp.einsum("bthd,bhde->bthe", q, state) / jnp.einsum("bthd,bhd->bth", q, norm)[..., None]


def plain_documents(q, k, v, document):
    same = document[:, None, :, None] == document[:, None, None, :]
    mask = same & jnp.tril(jnp.ones((8, 8), bool))
    return softmax_attention(q, k, v, mask)


@harder(
    SEQ,
    (SPLIT,) * 4,
    SPLIT,
    Q,
    K,
    V,
    jnp.sort(integers(2, 8, low=0, high=3), -1),
    reference=plain_documents,
    check_vma=False,
)
def attention_within_packed_documents(q, k, v, document):
    k, v, every = (lax.all_gather(x, "seq", axis=1, tiled=True) for x in (k, v, document))
    same = document[:, None, :, None] == every[:, None, None, :]
    causal = positions(q.shape[1])[:, None] >= jnp.arange(k.shape[1])
    return softmax_attention(q, k, v, same & causal)


def plain_window(q, k, v):
    here = jnp.arange(8)
    return softmax_attention(q, k, v, (here[:, None] >= here) & (here[:, None] - here <= 2))


@harder(SEQ, (SPLIT,) * 3, SPLIT, Q, K, V, reference=plain_window, check_vma=False)
def sliding_window_with_a_halo_of_keys(q, k, v):
    halo = [jnp.concatenate([from_before(x[:, -2:]), x], 1) for x in (k, v)]
    here = positions(q.shape[1])
    there = here[0] - 2 + jnp.arange(q.shape[1] + 2)
    mask = (here[:, None] >= there) & (here[:, None] - there <= 2) & (there >= 0)
    return softmax_attention(q, *halo, mask)


def rotated(x, places):
    half = x.shape[-1] // 2
    angle = places[:, None] / 100.0 ** (jnp.arange(half) / half)
    sin, cos = jnp.sin(angle)[:, None], jnp.cos(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


@harder(SEQ, SPLIT, SPLIT, Q, reference=lambda q: rotated(q, jnp.arange(8)))
def rotary_positions(q):
    return rotated(q, positions(q.shape[1]))


@harder(SEQ, (SPLIT, P()), SPLIT, TEXT, normal(32, 16))
def table_of_positions(x, table):
    return x + lax.dynamic_slice_in_dim(table, lax.axis_index("seq") * x.shape[1], x.shape[1])


@harder(SEQ, SPLIT, SPLIT, TEXT, reference=lambda x: jnp.cumsum(x, 1), check_vma=False)
def cumsum_with_a_gathered_prefix(x):
    totals = lax.all_gather(x.sum(1), "seq")
    before = jnp.arange(lax.axis_size("seq")) < lax.axis_index("seq")
    return jnp.cumsum(x, 1) + jnp.where(before[:, None, None], totals, 0).sum(0)[:, None]


@harder(SEQ, SPLIT, SPLIT, TEXT, reference=lambda x: jnp.cumsum(x, 1))
def cumsum_with_totals_sent_along(x):
    own = jnp.cumsum(x, 1)
    prefix, passed = jnp.zeros_like(own[:, -1]), own[:, -1]
    for _ in range(lax.axis_size("seq") - 1):
        passed = from_before(passed)
        prefix = prefix + passed
    return own + prefix[:, None]


def plain_causal(x, w):
    return sum(jnp.pad(x, ((0, 0), (i, 0), (0, 0)))[:, :8] * w[i] for i in range(3))


@harder(SEQ, (SPLIT, P()), SPLIT, TEXT, normal(3, 16), reference=plain_causal)
def causal_depthwise_convolution(x, w):
    size = x.shape[1]
    wide = jnp.concatenate([from_before(x[:, -2:]), x], 1)
    return sum(wide[:, 2 - i : 2 - i + size] * w[i] for i in range(3))


@harder(SEQ, (SPLIT, P()), P(), TEXT, normal(16))
def gradient_of_a_norm_scale(x, scale):
    def loss(scale):
        h = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale
        return lax.pmean(jnp.mean(jnp.sin(h)), "seq")

    return jax.grad(loss)(scale)


def plain_next(logits, ids):
    scores = jax.nn.log_softmax(logits[:, :-1])
    return -jnp.take_along_axis(scores, ids[:, 1:, None], -1).mean()


@harder(
    SEQ, (SPLIT, SPLIT), P(), normal(2, 8, 5), integers(2, 8, low=0, high=5), reference=plain_next
)
def next_token_loss_across_devices(logits, ids):
    labels = jnp.concatenate([ids[:, 1:], from_behind(ids[:, :1])], 1)
    last = positions(ids.shape[1]) == ids.shape[1] * lax.axis_size("seq") - 1
    scores = jax.nn.log_softmax(logits)
    losses = -jnp.take_along_axis(scores, labels[..., None], -1)[..., 0]
    losses = jnp.where(last, 0, losses)
    return lax.psum(losses.sum(), "seq") / lax.psum((~last).sum() * len(ids), "seq")


@harder(SEQ, SPLIT, SPLIT, TEXT, reference=lambda x: x[:, ::-1])
def sequence_reversed(x):
    size = lax.axis_size("seq")
    return lax.ppermute(x[:, ::-1], "seq", [(i, size - 1 - i) for i in range(size)])


def plain_states(x, decay):
    return lax.scan(lambda h, v: (h * decay + v,) * 2, jnp.zeros(16), x)[1]


@harder(
    SEQ,
    (P(None, "seq"), P("seq")),
    P(None, "seq"),
    normal(8, 16),
    normal(16),
    reference=plain_states,
)
def state_space_of_split_channels(x, decay):
    return lax.scan(lambda h, v: (h * decay + v,) * 2, jnp.zeros_like(x[0]), x)[1]
