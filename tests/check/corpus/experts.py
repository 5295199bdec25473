"""Mistakes in mixtures of experts: tokens and experts split over `expert`."""

import jax
import jax.numpy as jnp
from jax import P, lax, shard_map

from tests.support import normal

from . import pair

EXPERTS = {"expert": [1, 4]}


def exchange():
    """Slots (group, expert, feature), and one matrix for each expert."""
    return normal(4, 4, 3), normal(4, 3, 3)


def dispatch(slots):
    return lax.all_to_all(slots, "expert", split_axis=1, concat_axis=0, tiled=True)


def combine(answers):
    return lax.all_to_all(answers, "expert", split_axis=0, concat_axis=1, tiled=True)


def right_exchange(slots, w, *, mesh):
    def body(slots, w):
        return combine(jnp.einsum("ged,edf->gef", dispatch(slots), w))

    return shard_map(body, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"))(slots, w)


@pair(mesh=EXPERTS, args=exchange, codes={"SW108", "SW407"})
class answers_not_sent_back:
    """Each device keeps the answers of its experts, and calls them those of its tokens."""

    right = right_exchange

    def wrong(slots, w, *, mesh):
        def body(slots, w):
            return jnp.einsum("ged,edf->gef", dispatch(slots), w)  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"))(slots, w)


@pair(mesh=EXPERTS, args=exchange, codes={"SW109", "SW407"})
class answers_reshaped_instead_of_sent_back:
    """The shape is right, the tokens are not."""

    right = right_exchange

    def wrong(slots, w, *, mesh):
        def body(slots, w):
            answers = jnp.einsum("ged,edf->gef", dispatch(slots), w)
            return answers.reshape(slots.shape)  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"))(slots, w)


@pair(mesh=EXPERTS, args=exchange, codes={"SW109"})
class slots_split_by_group:
    """The slots are dealt out by group where they should be by expert."""

    right = right_exchange

    def wrong(slots, w, *, mesh):
        def body(slots, w):
            slots = slots.swapaxes(0, 1)
            sent = lax.all_to_all(slots, "expert", split_axis=0, concat_axis=0, tiled=True)  # wrong
            sent = sent.reshape(-1, len(w), 3)  # wrong
            answers = jnp.einsum("ged,edf->gef", sent, w)
            return combine(answers)  # wrong

        return shard_map(body, mesh=mesh, in_specs=P("expert"), out_specs=P("expert"))(slots, w)


def tokens():
    return normal(16, 3), normal(3, 4)


@pair(mesh=EXPERTS, args=tokens, codes={"SW109"})
class capacity_of_a_device:
    """How many tokens an expert takes is counted among the tokens of one device."""

    def right(x, router, *, mesh):
        def body(x, router):
            every = lax.all_gather(x, "expert", tiled=True)
            chosen = jax.nn.one_hot((every @ router).argmax(-1), 4)
            kept = (jnp.cumsum(chosen, 0) * chosen).max(-1) <= 2
            start = lax.axis_index("expert") * len(x)
            return x * lax.dynamic_slice_in_dim(kept, start, len(x))[:, None]

        specs = (P("expert"), P())
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("expert"))(x, router)

    def wrong(x, router, *, mesh):
        def body(x, router):
            chosen = jax.nn.one_hot((x @ router).argmax(-1), 4)
            kept = (jnp.cumsum(chosen, 0) * chosen).max(-1) <= 2  # wrong
            return x * kept[:, None]  # wrong

        specs = (P("expert"), P())
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("expert"))(x, router)


@pair(mesh=EXPERTS, args=tokens, codes={"SW109", "SW405"})
class balance_of_products:
    """The load-balancing loss multiplies before it averages."""

    def right(x, router, *, mesh):
        def body(x, router):
            probabilities = jax.nn.softmax(x @ router)
            chosen = jax.nn.one_hot(probabilities.argmax(-1), 4)
            share, mass = lax.pmean((chosen.mean(0), probabilities.mean(0)), "expert")
            return 4 * jnp.sum(share * mass)

        specs = (P("expert"), P())
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(x, router)

    def wrong(x, router, *, mesh):
        def body(x, router):
            probabilities = jax.nn.softmax(x @ router)
            chosen = jax.nn.one_hot(probabilities.argmax(-1), 4)
            loss = 4 * jnp.sum(chosen.mean(0) * probabilities.mean(0))  # wrong
            return lax.pmean(loss, "expert")  # wrong

        specs = (P("expert"), P())
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(x, router)


@pair(mesh=EXPERTS, args=tokens, codes={"SW403"})
class load_of_one_device:
    """How many tokens each expert serves is counted on one device."""

    def right(x, router, *, mesh):
        def body(x, router):
            load = jax.nn.one_hot((x @ router).argmax(-1), 4).sum(0)
            return lax.psum(load, "expert")

        specs = (P("expert"), P())
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(x, router)

    def wrong(x, router, *, mesh):
        def body(x, router):
            return jax.nn.one_hot((x @ router).argmax(-1), 4).sum(0)  # wrong

        specs = (P("expert"), P())
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(x, router)


def small():
    return normal(6, 3), normal(3, 4), normal(4, 3, 3)


SMALL = (P(), P(None, "expert"), P("expert"))


@pair(mesh=EXPERTS, args=small, codes={"SW109", "SW404"})
class residual_added_by_every_expert:
    """The tokens are on every device; each adds them to its answer, and the answers are summed."""

    def right(x, router, w, *, mesh):
        def body(x, router, w):
            gates = jax.nn.sigmoid(x @ router)
            return x + lax.psum(jnp.einsum("te,td,edf->tf", gates, x, w), "expert")

        return shard_map(body, mesh=mesh, in_specs=SMALL, out_specs=P())(x, router, w)

    def wrong(x, router, w, *, mesh):
        def body(x, router, w):
            gates = jax.nn.sigmoid(x @ router)
            out = x + jnp.einsum("te,td,edf->tf", gates, x, w)  # wrong
            return lax.psum(out, "expert")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SMALL, out_specs=P())(x, router, w)


@pair(mesh=EXPERTS, args=small, codes={"SW109"})
class gates_of_the_experts_here:
    """The gates are normalised over the experts of one device."""

    def right(x, router, w, *, mesh):
        def body(x, router, w):
            scores = jnp.exp(x @ router)
            gates = scores / lax.psum(scores.sum(-1, keepdims=True), "expert")
            return lax.psum(jnp.einsum("te,td,edf->tf", gates, x, w), "expert")

        return shard_map(body, mesh=mesh, in_specs=SMALL, out_specs=P())(x, router, w)

    def wrong(x, router, w, *, mesh):
        def body(x, router, w):
            scores = jnp.exp(x @ router)
            gates = scores / scores.sum(-1, keepdims=True)  # wrong
            return lax.psum(jnp.einsum("te,td,edf->tf", gates, x, w), "expert")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SMALL, out_specs=P())(x, router, w)


@pair(mesh=EXPERTS, args=small, codes={"SW109"})
class best_of_the_experts_here:
    """Each device serves every token with the best of its own experts."""

    def right(x, router, w, *, mesh):
        def body(x, router, w):
            scores = x @ router
            best = lax.pmax(scores.max(-1), "expert")
            mine = (scores == best[:, None]).astype(x.dtype)
            return lax.psum(jnp.einsum("te,td,edf->tf", mine, x, w), "expert")

        return shard_map(body, mesh=mesh, in_specs=SMALL, out_specs=P())(x, router, w)

    def wrong(x, router, w, *, mesh):
        def body(x, router, w):
            scores = x @ router
            mine = (scores == scores.max(-1, keepdims=True)).astype(x.dtype)  # wrong
            return lax.psum(jnp.einsum("te,td,edf->tf", mine, x, w), "expert")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SMALL, out_specs=P())(x, router, w)
