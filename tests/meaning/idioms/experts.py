"""Mixtures of experts."""

import jax
import jax.numpy as jnp
from jax import P, lax

from tests.support import integers, normal

from . import harder, production

EXPERT = {"expert": 4}
SLOTS, EXPERTS = normal(4, 4, 3, 6), normal(4, 6, 6)
TOKENS, ROUTER = normal(16, 6), normal(6, 4)
SPLIT = P("expert")


def dispatch(slots):
    return lax.all_to_all(slots, "expert", split_axis=1, concat_axis=0, tiled=True)


def combine(answers):
    return lax.all_to_all(answers, "expert", split_axis=0, concat_axis=1, tiled=True)


def answer(slots, experts):
    return jax.nn.silu(jnp.einsum("gecd,edf->gecf", slots, experts))


@production(EXPERT, (SPLIT, SPLIT), SPLIT, SLOTS, EXPERTS, reference=answer)
def slots_sent_to_experts_and_back(slots, experts):
    return combine(answer(dispatch(slots), experts))


def gates(x, router):
    """Which expert each token of a group goes to, in which of 3 slots; and its weight."""
    weights = jax.nn.softmax(x @ router)
    chosen = jax.nn.one_hot(weights.argmax(-1), 4)
    place = ((jnp.cumsum(chosen, 1) - 1) * chosen).sum(-1).astype(int)
    slots = jax.nn.one_hot(place, 3) * (place < 3)[..., None]
    mask = chosen[..., None] * slots[:, :, None]
    return mask, weights.max(-1)


def plain_switch(x, router, experts):
    mask, weight = gates(x, router)
    slots = answer(jnp.einsum("gtec,gtd->gecd", mask, x), experts)
    return jnp.einsum("gtec,gecd->gtd", mask, slots) * weight[..., None]


GROUPS = TOKENS.reshape(4, 4, 6)


@production(EXPERT, (SPLIT, P(), SPLIT), SPLIT, GROUPS, ROUTER, EXPERTS, reference=plain_switch)
def switch_layer_with_a_capacity_for_each_group(x, router, experts):
    mask, weight = gates(x, router)
    slots = dispatch(jnp.einsum("gtec,gtd->gecd", mask, x))
    answers = combine(answer(slots, experts))
    return jnp.einsum("gtec,gecd->gtd", mask, answers) * weight[..., None]


@harder(EXPERT, (SPLIT, P(), SPLIT), (P(), SPLIT), GROUPS, ROUTER, EXPERTS)
def gradient_of_a_switch_layer(x, router, experts):
    def loss(router, experts):
        mask, weight = gates(x, router)
        slots = dispatch(jnp.einsum("gtec,gtd->gecd", mask, x))
        answers = combine(answer(slots, experts))
        out = jnp.einsum("gtec,gecd->gtd", mask, answers) * weight[..., None]
        return lax.pmean(jnp.mean(jnp.sin(out)), "expert")

    return jax.grad(loss, (0, 1))(router, experts)


def plain_top_two(x, router, experts):
    weights, chosen = lax.top_k(jax.nn.softmax(x @ router), 2)
    mask = (jax.nn.one_hot(chosen, 4) * (weights / weights.sum(-1, keepdims=True))[..., None]).sum(
        1
    )
    return jnp.einsum("te,tef->tf", mask, jnp.einsum("td,edf->tef", x, experts))


@harder(EXPERT, (P(), P(), SPLIT), P(), TOKENS, ROUTER, EXPERTS, reference=plain_top_two)
def every_token_through_the_experts_of_a_device(x, router, experts):
    weights, chosen = lax.top_k(jax.nn.softmax(x @ router), 2)
    weights = weights / weights.sum(-1, keepdims=True)
    own = lax.axis_index("expert") * len(experts) + jnp.arange(len(experts))
    mask = ((chosen[..., None] == own) * weights[..., None]).sum(1)
    answers = jnp.einsum("td,edf->tef", x, experts)
    return lax.psum(jnp.einsum("te,tef->tf", mask, answers), "expert")


def plain_soft(x, router, experts):
    answers = jnp.einsum("td,edf->tef", x, experts)
    return jnp.einsum("te,tef->tf", jax.nn.softmax(x @ router), answers)


@harder(EXPERT, (P(), P(None, "expert"), SPLIT), P(), TOKENS, ROUTER, EXPERTS, reference=plain_soft)
def soft_mixture_with_a_split_router(x, router, experts):
    scores = x @ router
    top = lax.pmax(scores.max(-1, keepdims=True), "expert")
    weights = jnp.exp(scores - top)
    total = lax.psum(weights.sum(-1, keepdims=True), "expert")
    answers = jnp.einsum("te,td,edf->tf", weights, x, experts)
    return lax.psum(answers, "expert") / total


@harder(EXPERT, (SPLIT, P()), P(), TOKENS, ROUTER)
def load_balancing_loss(x, router):
    weights = jax.nn.softmax(x @ router)
    chosen = jax.nn.one_hot(weights.argmax(-1), 4)
    share, mass = lax.pmean(chosen.mean(0), "expert"), lax.pmean(weights.mean(0), "expert")
    return 4 * jnp.sum(share * mass)


@harder(EXPERT, (SPLIT, P()), P(), TOKENS, ROUTER)
def router_z_loss(x, router):
    return lax.pmean(jnp.mean(jax.nn.logsumexp(x @ router, -1) ** 2), "expert")


def plain_expert_choice(x, router, experts):
    weights, chosen = lax.top_k(jax.nn.softmax(x @ router).T, 4)
    answers = jnp.einsum("ecd,edf->ecf", x[chosen], experts) * weights[..., None]
    return jnp.zeros_like(x).at[chosen].add(answers)


@harder(
    EXPERT,
    (SPLIT, P(), SPLIT),
    P(),
    TOKENS,
    ROUTER,
    EXPERTS,
    reference=plain_expert_choice,
    check_vma=False,
)
def experts_choose_among_gathered_tokens(x, router, experts):
    x = lax.all_gather(x, "expert", tiled=True)
    own = lax.axis_index("expert") * len(experts)
    scores = lax.dynamic_slice_in_dim(jax.nn.softmax(x @ router).T, own, len(experts))
    weights, chosen = lax.top_k(scores, 4)
    answers = jnp.einsum("ecd,edf->ecf", x[chosen], experts) * weights[..., None]
    return lax.psum(jnp.zeros_like(x).at[chosen].add(answers), "expert")


def plain_scattered(x, slot):
    return jnp.zeros((16, 6)).at[slot].add(x, mode="drop")


@harder(EXPERT, (P(), P()), SPLIT, TOKENS, integers(16, low=0, high=20), reference=plain_scattered)
def tokens_scattered_into_the_slots_of_a_device(x, slot):
    size = 16 // lax.axis_size("expert")
    local = slot - lax.axis_index("expert") * size
    local = jnp.where(local < 0, size, local)
    return jnp.zeros((size, 6)).at[local].add(x, mode="drop")


@harder(
    EXPERT, (SPLIT, SPLIT), P(), TOKENS, integers(16, low=0, high=20), reference=plain_scattered
)
def split_tokens_scattered_into_all_slots(x, slot):
    return lax.psum(jnp.zeros((16, 6)).at[slot].add(x, mode="drop"), "expert")


@harder(
    {"data": 2, "expert": 4},
    (P(("data", "expert")), SPLIT),
    P(("data", "expert")),
    normal(8, 4, 3, 6),
    EXPERTS,
    reference=answer,
)
def experts_beside_data(slots, experts):
    return combine(answer(dispatch(slots), experts))


TABLES, BAGS = normal(4, 10, 6), integers(8, 4, low=0, high=10)


@harder(
    EXPERT,
    (SPLIT, SPLIT),
    SPLIT,
    TABLES,
    BAGS,
    reference=lambda t, ids: jnp.stack([t[i][ids[:, i]] for i in range(4)], 1),
)
def tables_of_features_on_different_devices(tables, ids):
    ids = lax.all_to_all(ids, "expert", 1, 0, tiled=True)
    rows = jax.vmap(lambda table, ids: table[ids], (0, 1), 1)(tables, ids)
    return lax.all_to_all(rows, "expert", 0, 1, tiled=True)
