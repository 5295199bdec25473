"""Mistakes in tensor-parallel code: layers, vocabularies and heads split over `model`."""

import jax
import jax.numpy as jnp
from jax import P, lax, shard_map

from tests.support import integers, normal

from . import pair

MODEL = {"model": [1, 4]}
ROWS = (P(None, "model"), P("model"))


def layer():
    return normal(5, 8), normal(8, 3), normal(3)


@pair(mesh=MODEL, args=layer, codes={"SW403", "SW405"})
class row_split_without_sum:
    """Each device has a part of the sum over the features, and returns it as the whole."""

    def right(x, w, b, *, mesh):
        def body(x, w, b):
            return lax.psum(x @ w, "model") + b

        return shard_map(body, mesh=mesh, in_specs=(*ROWS, P()), out_specs=P())(x, w, b)

    def wrong(x, w, b, *, mesh):
        def body(x, w, b):
            out = x @ w  # wrong
            return jnp.tanh(out + b)

        return shard_map(body, mesh=mesh, in_specs=(*ROWS, P()), out_specs=P(), check_vma=False)(
            x, w, b
        )


@pair(mesh=MODEL, args=layer, codes={"SW109", "SW404"})
class bias_added_before_the_sum:
    """The bias is added on every device, then summed: it counts n times."""

    def right(x, w, b, *, mesh):
        def body(x, w, b):
            return lax.psum(x @ w, "model") + b

        return shard_map(body, mesh=mesh, in_specs=(*ROWS, P()), out_specs=P())(x, w, b)

    def wrong(x, w, b, *, mesh):
        def body(x, w, b):
            return lax.psum(x @ w + b, "model")  # wrong

        return shard_map(body, mesh=mesh, in_specs=(*ROWS, P()), out_specs=P())(x, w, b)


@pair(mesh=MODEL, args=layer, codes={"SW109", "SW402"})
class partial_products_averaged:
    """A pmean where a psum belongs."""

    def right(x, w, b, *, mesh):
        def body(x, w, b):
            return lax.psum(x @ w, "model") + b

        return shard_map(body, mesh=mesh, in_specs=(*ROWS, P()), out_specs=P())(x, w, b)

    def wrong(x, w, b, *, mesh):
        def body(x, w, b):
            out = lax.pmean(x @ w, "model")  # wrong
            return out + b

        return shard_map(body, mesh=mesh, in_specs=(*ROWS, P()), out_specs=P())(x, w, b)


@pair(mesh=MODEL, args=layer, codes={"SW109", "SW405"})
class activation_before_the_sum:
    """The activation function acts on parts of a sum."""

    def right(x, w, b, *, mesh):
        def body(x, w, b):
            return jax.nn.gelu(lax.psum(x @ w, "model") + b)

        return shard_map(body, mesh=mesh, in_specs=(*ROWS, P()), out_specs=P())(x, w, b)

    def wrong(x, w, b, *, mesh):
        def body(x, w, b):
            hidden = jax.nn.gelu(x @ w)  # wrong
            return lax.psum(hidden, "model") + b  # wrong

        return shard_map(body, mesh=mesh, in_specs=(*ROWS, P()), out_specs=P())(x, w, b)


@pair(mesh=MODEL, args=layer, codes={"SW109", "SW201", "SW401"})
class summed_twice:
    """A layer sums its output, and so does its caller."""

    def right(x, w, b, *, mesh):
        def body(x, w, b):
            return lax.psum(x @ w, "model") + b

        return shard_map(body, mesh=mesh, in_specs=(*ROWS, P()), out_specs=P())(x, w, b)

    def wrong(x, w, b, *, mesh):
        def body(x, w, b):
            out = lax.psum(x @ w, "model")
            return lax.psum(out, "model") + b  # wrong

        return shard_map(body, mesh=mesh, in_specs=(*ROWS, P()), out_specs=P(), check_vma=False)(
            x, w, b
        )


@pair(mesh=MODEL, args=lambda: (normal(4, 8),), codes={"SW109", "SW405"})
class norm_over_local_features:
    """A layer norm sees only the features that are here."""

    def right(x, *, mesh):
        def body(x):
            mean = lax.pmean(x.mean(-1, keepdims=True), "model")
            var = lax.pmean(((x - mean) ** 2).mean(-1, keepdims=True), "model")
            return (x - mean) * lax.rsqrt(var + 1e-6)

        spec = P(None, "model")
        return shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(x)

    def wrong(x, *, mesh):
        def body(x):
            mean = x.mean(-1, keepdims=True)  # wrong
            var = ((x - mean) ** 2).mean(-1, keepdims=True)  # wrong
            return (x - mean) * lax.rsqrt(var + 1e-6)

        spec = P(None, "model")
        return shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(x)


@pair(mesh=MODEL, args=lambda: (normal(4, 8),), codes={"SW109", "SW405"})
class softmax_over_local_vocabulary:
    """A softmax over a part of the vocabulary adds up to one on every device."""

    def right(logits, *, mesh):
        def body(logits):
            largest = lax.pmax(logits.max(-1, keepdims=True), "model")
            weights = jnp.exp(logits - largest)
            return weights / lax.psum(weights.sum(-1, keepdims=True), "model")

        spec = P(None, "model")
        return shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(logits)

    def wrong(logits, *, mesh):
        def body(logits):
            return jax.nn.softmax(logits)  # wrong

        spec = P(None, "model")
        return shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(logits)


@pair(mesh=MODEL, args=lambda: (normal(4, 8),), codes={"SW109", "SW405"})
class sum_over_different_scales:
    """Each device takes out its own maximum, so the sums do not fit together."""

    def right(logits, *, mesh):
        def body(logits):
            largest = lax.pmax(lax.stop_gradient(logits).max(-1), "model")
            total = jnp.exp(logits - largest[:, None]).sum(-1)
            return jnp.log(lax.psum(total, "model")) + largest

        return shard_map(body, mesh=mesh, in_specs=P(None, "model"), out_specs=P())(logits)

    def wrong(logits, *, mesh):
        def body(logits):
            largest = logits.max(-1)  # wrong
            total = jnp.exp(logits - largest[:, None]).sum(-1)
            total = lax.psum(total, "model")  # wrong
            return jnp.log(total) + lax.pmax(largest, "model")

        return shard_map(body, mesh=mesh, in_specs=P(None, "model"), out_specs=P())(logits)


def embedding():
    return normal(8, 3), integers(6, low=0, high=8)


@pair(mesh=MODEL, args=embedding, codes={"SW109"})
class rows_looked_up_without_offset:
    """Tokens are looked up by their global number in a local part of the table."""

    def right(table, tokens, *, mesh):
        def body(table, tokens):
            local = tokens - lax.axis_index("model") * len(table)
            here = (local >= 0) & (local < len(table))
            rows = jnp.where(here[:, None], table[jnp.clip(local, 0, len(table) - 1)], 0)
            return lax.psum(rows, "model")

        return shard_map(body, mesh=mesh, in_specs=(P("model"), P()), out_specs=P())(table, tokens)

    def wrong(table, tokens, *, mesh):
        def body(table, tokens):
            here = tokens < len(table)  # wrong
            rows = jnp.where(here[:, None], table[jnp.clip(tokens, 0, len(table) - 1)], 0)
            return lax.psum(rows, "model")  # wrong

        return shard_map(body, mesh=mesh, in_specs=(P("model"), P()), out_specs=P())(table, tokens)


@pair(mesh=MODEL, args=embedding, codes={"SW109"})
class rows_of_others_not_masked:
    """Tokens that belong elsewhere are clipped to the edge, and their rows are added."""

    def right(table, tokens, *, mesh):
        def body(table, tokens):
            local = tokens - lax.axis_index("model") * len(table)
            here = (local >= 0) & (local < len(table))
            rows = jnp.where(here[:, None], table[jnp.clip(local, 0, len(table) - 1)], 0)
            return lax.psum(rows, "model")

        return shard_map(body, mesh=mesh, in_specs=(P("model"), P()), out_specs=P())(table, tokens)

    def wrong(table, tokens, *, mesh):
        def body(table, tokens):
            local = tokens - lax.axis_index("model") * len(table)
            rows = table[jnp.clip(local, 0, len(table) - 1)]
            return lax.psum(rows, "model")  # wrong

        return shard_map(body, mesh=mesh, in_specs=(P("model"), P()), out_specs=P())(table, tokens)


@pair(mesh=MODEL, args=lambda: (normal(8, 8), normal(8, 8)), codes={"SW109"})
class gathered_along_the_wrong_dimension:
    """The columns of a square matrix come back as rows."""

    def right(x, w, *, mesh):
        def body(x, w):
            full = lax.all_gather(w, "model", axis=1, tiled=True)
            return x @ full

        specs = (P(), P(None, "model"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(x, w)

    def wrong(x, w, *, mesh):
        def body(x, w):
            full = lax.all_gather(w, "model", axis=0, tiled=True)  # wrong
            return x @ full.reshape(8, 8)  # wrong

        specs = (P(), P(None, "model"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(x, w)


@pair(
    mesh=MODEL,
    args=lambda: (normal(5, 4), normal(4, 8), normal(8, 3)),
    codes={"SW403", "SW406"},
)
class input_gradient_not_summed:
    """Without JAX's check the gradient of a replicated input is one device's part of it."""

    def right(x, w1, w2, *, mesh):
        def loss(x, w1, w2):
            return jnp.sum(lax.psum(jnp.tanh(x @ w1) @ w2, "model") ** 2)

        def body(x, w1, w2):
            return jax.grad(loss)(x, w1, w2)

        specs = (P(), P(None, "model"), P("model"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(x, w1, w2)

    def wrong(x, w1, w2, *, mesh):
        def loss(x, w1, w2):
            hidden = jnp.tanh(x @ w1)
            return jnp.sum(lax.stop_gradient(lax.psum(hidden @ w2, "model")) * (hidden @ w2))

        def body(x, w1, w2):
            return 2 * jax.grad(loss)(x, w1, w2)  # wrong

        specs = (P(), P(None, "model"), P("model"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(x, w1, w2)


@pair(
    mesh={"data": [1, 2], "model": [1, 2]},
    args=layer,
    codes={"SW109", "SW401", "SW403", "SW406"},
)
class summed_over_the_wrong_axis:
    """On a mesh of two axes the partial products are summed over the other one."""

    def right(x, w, b, *, mesh):
        def body(x, w, b):
            return lax.psum(x @ w, "model") + b

        return shard_map(body, mesh=mesh, in_specs=(*ROWS, P()), out_specs=P(), check_vma=False)(
            x, w, b
        )

    def wrong(x, w, b, *, mesh):
        def body(x, w, b):
            out = lax.psum(x @ w, "data")  # wrong
            return out + b  # wrong

        return shard_map(body, mesh=mesh, in_specs=(*ROWS, P()), out_specs=P(), check_vma=False)(
            x, w, b
        )


@pair(mesh=MODEL, args=lambda: (normal(4, 8), normal(4, 8)), codes={"SW403"})
class agreement_of_one_part:
    """A cosine needs the sums of all features before it divides."""

    def right(a, b, *, mesh):
        def body(a, b):
            dot, aa, bb = lax.psum(((a * b).sum(-1), (a * a).sum(-1), (b * b).sum(-1)), "model")
            return dot * lax.rsqrt(aa * bb)

        return shard_map(body, mesh=mesh, in_specs=P(None, "model"), out_specs=P())(a, b)

    def wrong(a, b, *, mesh):
        def body(a, b):
            dot = (a * b).sum(-1)  # wrong
            aa, bb = lax.psum(((a * a).sum(-1), (b * b).sum(-1)), "model")
            return dot * lax.rsqrt(aa * bb)  # wrong

        return shard_map(
            body, mesh=mesh, in_specs=P(None, "model"), out_specs=P(), check_vma=False
        )(a, b)
