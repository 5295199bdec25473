"""Mistakes in sequence-parallel code: positions split over `sequence`."""

import jax
import jax.numpy as jnp
from jax import P, lax, shard_map

from tests.support import normal

from . import pair

SEQUENCE = {"sequence": [1, 4]}
SPLIT = P("sequence")


@pair(mesh=SEQUENCE, args=lambda: (normal(8, 4),), codes={"SW109"})
class positions_from_zero:
    """Every device numbers its positions from zero."""

    def right(x, *, mesh):
        def body(x):
            position = lax.axis_index("sequence") * len(x) + jnp.arange(len(x))
            return x + jnp.sin(position / 3.0)[:, None]

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)(x)

    def wrong(x, *, mesh):
        def body(x):
            position = jnp.arange(len(x))
            return x + jnp.sin(position / 3.0)[:, None]  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)(x)


def attention():
    return normal(8, 4), normal(8, 4), normal(8, 4)


def gather(*parts):
    return [lax.all_gather(part, "sequence", tiled=True) for part in parts]


@pair(mesh=SEQUENCE, args=attention, codes={"SW109"})
class attention_to_local_keys:
    """A query sees only the keys of its own device."""

    def right(q, k, v, *, mesh):
        def body(q, k, v):
            k, v = gather(k, v)
            return jax.nn.softmax(q @ k.T) @ v

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)(q, k, v)

    def wrong(q, k, v, *, mesh):
        def body(q, k, v):
            weights = jax.nn.softmax(q @ k.T)  # wrong
            return weights @ v  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)(q, k, v)


@pair(mesh=SEQUENCE, args=attention, codes={"SW109"})
class causal_mask_of_local_positions:
    """The mask compares a query's local position with a key's global one."""

    def right(q, k, v, *, mesh):
        def body(q, k, v):
            k, v = gather(k, v)
            mine = lax.axis_index("sequence") * len(q) + jnp.arange(len(q))
            seen = mine[:, None] >= jnp.arange(len(k))[None]
            return jax.nn.softmax(jnp.where(seen, q @ k.T, -1e9)) @ v

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)(q, k, v)

    def wrong(q, k, v, *, mesh):
        def body(q, k, v):
            k, v = gather(k, v)
            seen = jnp.arange(len(q))[:, None] >= jnp.arange(len(k))[None]
            scores = jnp.where(seen, q @ k.T, -1e9)  # wrong
            return jax.nn.softmax(scores) @ v

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)(q, k, v)


def ring(n):
    return [(i, (i + 1) % n) for i in range(n)]


def right_ring(q, k, v, *, mesh):
    def body(q, k, v):
        n = lax.axis_size("sequence")
        total, weighted = jnp.zeros(len(q)), jnp.zeros(q.shape)
        total, weighted = lax.pcast((total, weighted), "sequence", to="varying")
        for _ in range(n):
            weights = jnp.exp(q @ k.T)
            total, weighted = total + weights.sum(-1), weighted + weights @ v
            k, v = lax.ppermute((k, v), "sequence", ring(n))
        return weighted / total[:, None]

    return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)(q, k, v)


def ring_args():
    return normal(8, 4) / 2, normal(8, 4, seed=1) / 2, normal(8, 4)


@pair(mesh=SEQUENCE, args=ring_args, codes={"SW109"})
class one_turn_too_few:
    """The keys of the last neighbour never arrive."""

    right = right_ring

    def wrong(q, k, v, *, mesh):
        def body(q, k, v):
            n = lax.axis_size("sequence")
            total, weighted = 0.0, 0.0
            for _ in range(max(n - 1, 1)):  # wrong
                weights = jnp.exp(q @ k.T)
                total, weighted = total + weights.sum(-1), weighted + weights @ v  # wrong
                k, v = lax.ppermute((k, v), "sequence", ring(n))
            return weighted / total[:, None]  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)(q, k, v)


@pair(mesh=SEQUENCE, args=ring_args, codes={"SW109"})
class values_stay_behind:
    """The keys go round, the values do not."""

    right = right_ring

    def wrong(q, k, v, *, mesh):
        def body(q, k, v):
            n = lax.axis_size("sequence")
            total, weighted = 0.0, 0.0
            for _ in range(n):
                weights = jnp.exp(q @ k.T)
                total, weighted = total + weights.sum(-1), weighted + weights @ v  # wrong
                k = lax.ppermute(k, "sequence", ring(n))  # wrong
            return weighted / total[:, None]  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)(q, k, v)


@pair(mesh=SEQUENCE, args=lambda: (normal(4), normal(8, 4), normal(8, 4)), codes={"SW109", "SW405"})
class softmax_before_the_sum:
    """One query, keys everywhere: each device normalises by itself, and the mean is taken."""

    def right(q, k, v, *, mesh):
        def body(q, k, v):
            weights = jnp.exp(k @ q)
            total, weighted = lax.psum((weights.sum(), weights @ v), "sequence")
            return weighted / total

        specs = (P(), SPLIT, SPLIT)
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(q, k, v)

    def wrong(q, k, v, *, mesh):
        def body(q, k, v):
            out = jax.nn.softmax(k @ q) @ v  # wrong
            return lax.pmean(out, "sequence")  # wrong

        specs = (P(), SPLIT, SPLIT)
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(q, k, v)


@pair(mesh=SEQUENCE, args=lambda: (normal(8),), codes={"SW109"})
class convolution_without_neighbours:
    """At the edges of a part the neighbour's values are missing."""

    def right(x, *, mesh):
        def body(x):
            n = lax.axis_size("sequence")
            left = lax.ppermute(x[-1:], "sequence", [(i, i + 1) for i in range(n - 1)])
            return x + 0.5 * jnp.concatenate([left, x[:-1]])

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)(x)

    def wrong(x, *, mesh):
        def body(x):
            before = jnp.concatenate([jnp.zeros(1), x[:-1]])  # wrong
            return x + 0.5 * before  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)(x)


@pair(mesh=SEQUENCE, args=lambda: (normal(8),), codes={"SW109"})
class running_sum_restarts:
    """A running sum starts at zero on every device."""

    def right(x, *, mesh):
        def body(x):
            totals = lax.all_gather(x.sum(), "sequence")
            before = jnp.where(jnp.arange(len(totals)) < lax.axis_index("sequence"), totals, 0)
            return jnp.cumsum(x) + before.sum()

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)(x)

    def wrong(x, *, mesh):
        def body(x):
            return jnp.cumsum(x)  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT)(x)


@pair(mesh=SEQUENCE, args=lambda: (normal(8),), codes={"SW109"})
class next_token_across_the_edge:
    """The last position of each part has no next token, and is left out of the loss."""

    def right(x, *, mesh):
        def body(x):
            n = lax.axis_size("sequence")
            following = lax.ppermute(x[:1], "sequence", [(i + 1, i) for i in range(n - 1)])
            gaps = (jnp.concatenate([x[1:], following]) - x) ** 2
            last = lax.axis_index("sequence") == n - 1
            gaps = jnp.where(last & (jnp.arange(len(x)) == len(x) - 1), 0, gaps)
            return lax.psum(gaps.sum(), "sequence")

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=P())(x)

    def wrong(x, *, mesh):
        def body(x):
            gaps = (x[1:] - x[:-1]) ** 2
            return lax.psum(gaps.sum(), "sequence")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=P())(x)


@pair(mesh=SEQUENCE, args=lambda: (normal(8, 3), 2.0 ** -(normal(8) ** 2)), codes={"SW405"})
class pooled_by_weight_on_each_device:
    """Weighted pooling divides by the weights of one device."""

    def right(x, weight, *, mesh):
        def body(x, weight):
            total, mass = lax.psum((weight @ x, weight.sum()), "sequence")
            return total / mass

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=P())(x, weight)

    def wrong(x, weight, *, mesh):
        def body(x, weight):
            pooled = weight @ x / weight.sum()  # wrong
            return lax.pmean(pooled, "sequence")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=P())(x, weight)


@pair(mesh=SEQUENCE, args=lambda: (normal(8, 3),), codes={"SW109", "SW403", "SW406"})
class last_token_of_the_first_device:
    """The last token of the sequence is on the last device."""

    def right(x, *, mesh):
        def body(x):
            last = lax.axis_index("sequence") == lax.axis_size("sequence") - 1
            return lax.psum(jnp.where(last, x[-1], 0), "sequence")

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=P())(x)

    def wrong(x, *, mesh):
        def body(x):
            return jnp.tanh(x[-1])  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=P(), check_vma=False)(x)
