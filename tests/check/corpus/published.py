"""Silent bugs that others have published, each rewritten for JAX, with its right twin.

The docstrings say where they were found: the table of TTrace (Megatron-LM), TrainVerify, and public
issue threads. `python -m tests.check.published` prints what is said of each.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax, shard_map

from tests.support import integers, normal

from . import pair

MODEL = {"model": [1, 4]}
DATA = {"data": [1, 4]}
CONTEXT = {"context": [1, 4]}
STAGES = {"stage": [1, 2]}


# --- Megatron-LM, as listed by TTrace


def embedding():
    return normal(16, 3), integers(6, low=0, high=16)


@pair(mesh=MODEL, args=embedding, codes={"SW109", "SW405", "SW406"})
class embedding_mask_off_by_one:
    """Tensor parallelism: the mask of the embedding lets the next device's first row in."""

    def right(table, tokens, *, mesh):
        def body(table, tokens):
            local = tokens - lax.axis_index("model") * len(table)
            here = (local >= 0) & (local < len(table))
            rows = table[jnp.clip(local, 0, len(table) - 1)]
            return lax.psum(jnp.where(here[:, None], rows, 0), "model")

        return shard_map(body, mesh=mesh, in_specs=(P("model"), P()), out_specs=P())(table, tokens)

    def wrong(table, tokens, *, mesh):
        def body(table, tokens):
            local = tokens - lax.axis_index("model") * len(table)
            here = (local >= 0) & (local <= len(table))  # wrong
            rows = table[jnp.clip(local, 0, len(table) - 1)]
            return lax.psum(jnp.where(here[:, None], rows, 0), "model")  # wrong

        return shard_map(body, mesh=mesh, in_specs=(P("model"), P()), out_specs=P())(table, tokens)


def tokens():
    return normal(4), normal(8, 4), np.float32([1, 1, 1, 0, 1, 0, 0, 1])


def token_losses(w, x):
    return jnp.square(x @ w)


@pair(mesh=CONTEXT, args=tokens, codes={"SW405"})
class loss_scale_of_a_context:
    """Context parallelism: each device divides by its own number of tokens."""

    def right(w, x, mask, *, mesh):
        def body(w, x, mask):
            total = lax.psum(jnp.sum(token_losses(w, x) * mask), "context")
            return total / lax.psum(jnp.sum(mask), "context")

        specs = (P(), P("context"), P("context"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(w, x, mask)

    def wrong(w, x, mask, *, mesh):
        def body(w, x, mask):
            loss = jnp.sum(token_losses(w, x) * mask) / (jnp.sum(mask) + 1e-6)  # wrong
            return lax.pmean(loss, "context")  # wrong

        specs = (P(), P("context"), P("context"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(w, x, mask)


def tied():
    return normal(8, 3), normal(8, 8), normal(8, 8)


def tied_loss(table, first, x, y):
    """A model whose first and last layer share a table."""
    return jnp.sum((jnp.tanh(x @ first) @ table.T - y) ** 2)


@pair(mesh=DATA, args=tied, codes={"SW109", "SW403", "SW405"})
class tied_embedding_loses_one_gradient:
    """ZeRO: of the two gradients of a tied table only one is added up over the devices."""

    def right(table, x, y, *, mesh):
        def body(table, x, y):
            grads = jax.grad(tied_loss, (0, 1))(table, table, x, y)
            total = lax.psum(grads[0] + grads[1], "data")
            return table - 0.01 * total

        specs = (P(), P("data"), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(
            table, x, y
        )

    def wrong(table, x, y, *, mesh):
        def body(table, x, y):
            head, first = jax.grad(tied_loss, (0, 1))(table, table, x, y)  # wrong
            total = lax.psum(head, "data") + first  # wrong
            return table - 0.01 * total

        specs = (P(), P("data"), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(
            table, x, y
        )


def scaled():
    return normal(4), normal(4, 4), normal(8, 4)


def norm(x, scale):
    return scale * x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


@pair(mesh=CONTEXT, args=scaled, codes={"SW403", "SW406"})
class norm_weights_not_synchronised:
    """Sequence parallelism: the gradient of a layer norm's scale stays each device's own."""

    def right(scale, w, x, *, mesh):
        def body(scale, w, x):
            grads = jax.grad(lambda s: jnp.sum((norm(x, s) @ w) ** 2))(scale)
            return scale - 0.01 * lax.psum(grads, "context")

        specs = (P(), P(), P("context"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(
            scale, w, x
        )

    def wrong(scale, w, x, *, mesh):
        def body(scale, w, x):
            grads = jax.grad(lambda s: jnp.sum((norm(x, s) @ w) ** 2))(scale)  # wrong
            return scale - 0.01 * grads  # wrong

        specs = (P(), P(), P("context"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(
            scale, w, x
        )


@pair(mesh=MODEL, args=lambda: (normal(8), normal(8, 16), normal(4, 8)), codes={"SW403"})
class norm_gradient_not_communicated:
    """Tensor parallelism: the norm before a column-split layer gets one device's gradient."""

    def right(scale, w, x, *, mesh):
        def body(scale, w, x):
            grads = jax.grad(lambda s: jnp.sum((norm(x, s) @ w) ** 2))(scale)
            return lax.psum(grads, "model")

        specs = (P(), P(None, "model"), P())
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(
            scale, w, x
        )

    def wrong(scale, w, x, *, mesh):
        def body(scale, w, x):
            return jax.grad(lambda s: jnp.sum((norm(x, s) @ w) ** 2))(scale)  # wrong

        specs = (P(), P(None, "model"), P())
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(
            scale, w, x
        )


def sgd():
    return normal(8, 2), normal(8, 8), normal(8, 2)


def squares(w, x, y):
    return jnp.sum((x @ w - y) ** 2)


@pair(mesh=DATA, args=sgd, codes={"SW109", "SW403", "SW406"})
class parameters_not_gathered_after_the_update:
    """ZeRO: each device updates its own rows, and the others' rows stay as they were."""

    def right(w, x, y, *, mesh):
        def body(w, x, y):
            part = lax.psum_scatter(jax.grad(squares)(w, x, y), "data", tiled=True)
            mine = lax.dynamic_slice_in_dim(w, lax.axis_index("data") * len(part), len(part))
            return lax.all_gather(mine - 0.01 * part, "data", tiled=True)

        specs = (P(), P("data"), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(w, x, y)

    def wrong(w, x, y, *, mesh):
        def body(w, x, y):
            part = lax.psum_scatter(jax.grad(squares)(w, x, y), "data", tiled=True)
            start = lax.axis_index("data") * len(part)
            mine = lax.dynamic_slice_in_dim(w, start, len(part)) - 0.01 * part
            return lax.dynamic_update_slice_in_dim(w, mine, start, 0)  # wrong

        specs = (P(), P("data"), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(w, x, y)


def layers():
    return normal(4, 3, 3) / 2, normal(2, 3)


def sent(out, n):
    return lax.ppermute(out, "stage", [(s, s + 1) for s in range(n - 1)])


@pair(mesh=STAGES, args=layers, codes={"SW109"})
class layers_divided_wrongly:
    """Pipeline: the layers of a stage are applied in the order of another division."""

    def right(w, x, *, mesh):
        def body(w, x):
            stage, n = lax.axis_index("stage"), lax.axis_size("stage")
            out = lax.pcast(x, "stage", to="varying")
            for turn in range(n):
                out = sent(out, n) if turn else out
                for layer in w:
                    out = jnp.tanh(out @ layer)
            return lax.psum(jnp.where(stage == n - 1, out, 0), "stage")

        return shard_map(body, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P())(w, x)

    def wrong(w, x, *, mesh):
        def body(w, x):
            stage, n = lax.axis_index("stage"), lax.axis_size("stage")
            out = lax.pcast(x, "stage", to="varying")
            for turn in range(n):
                out = sent(out, n) if turn else out
                for layer in w if n == 1 else w[::-1]:  # wrong
                    out = jnp.tanh(out @ layer)  # wrong
            return lax.psum(jnp.where(stage == n - 1, out, 0), "stage")  # wrong

        return shard_map(body, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P())(w, x)


def attention():
    return normal(8, 4), normal(8, 4), normal(8, 4)


def attend(q, k, v):
    return jax.nn.softmax(q @ k.T / 2) @ v


@pair(mesh=CONTEXT, args=attention, codes={"SW109", "SW403", "SW405", "SW406"})
class attention_gradients_of_a_context:
    """Context parallelism: the gradients of gathered keys are not added up over the queries."""

    def right(q, k, v, *, mesh):
        def body(q, k, v):
            k, v = lax.all_gather((k, v), "context", tiled=True)
            grads = jax.grad(lambda k: jnp.sum(attend(q, k, v) ** 2))(k)
            return lax.psum_scatter(grads, "context", tiled=True)

        return shard_map(body, mesh=mesh, in_specs=P("context"), out_specs=P("context"))(q, k, v)

    def wrong(q, k, v, *, mesh):
        def body(q, k, v):
            k, v = lax.all_gather((k, v), "context", tiled=True)
            grads = jax.grad(lambda k: jnp.sum(attend(q, k, v) ** 2))(k)  # wrong
            start = lax.axis_index("context") * len(q)
            return lax.dynamic_slice_in_dim(grads, start, len(q))  # wrong

        return shard_map(
            body, mesh=mesh, in_specs=P("context"), out_specs=P("context"), check_vma=False
        )(q, k, v)


# --- TrainVerify


@pair(mesh=CONTEXT, args=tokens, codes={"SW401"})
class gradients_scaled_by_the_context:
    """The loss is taken per token, and the gradients are still multiplied by the context size."""

    def right(w, x, mask, *, mesh):
        def body(w, x, mask):
            count = lax.psum(jnp.sum(mask), "context")
            grads = jax.grad(lambda w: jnp.sum(token_losses(w, x) * mask) / count)(w)
            return lax.psum(grads, "context")

        specs = (P(), P("context"), P("context"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(
            w, x, mask
        )

    def wrong(w, x, mask, *, mesh):
        def body(w, x, mask):
            count = lax.psum(jnp.sum(mask), "context")
            grads = jax.grad(lambda w: jnp.sum(token_losses(w, x) * mask) / count)(w)
            total = lax.psum(grads, "context")  # wrong
            return total * lax.axis_size("context")  # wrong

        specs = (P(), P("context"), P("context"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(
            w, x, mask
        )


# --- public reports


@pair(mesh=DATA, args=lambda: (normal(3), normal(8, 3)), codes={"SW109", "SW401", "SW405", "SW406"})
class gradients_of_each_example:
    """jax 36886: a gradient for each example, of parameters that are closed over."""

    def right(w, x, *, mesh):
        def body(w, x):
            w = lax.pcast(w, "data", to="varying")
            return jax.vmap(lambda x: jax.grad(lambda w: jnp.tanh(x @ w))(w))(x)

        specs = (P(), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("data"))(w, x)

    def wrong(w, x, *, mesh):
        def body(w, x):
            grad = jax.grad(lambda w, x: jnp.tanh(x @ w))
            return jax.vmap(lambda x: grad(w, x))(x)  # wrong

        specs = (P(), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("data"), check_vma=True)(w, x)


@pair(mesh=DATA, args=lambda: (normal(3), normal(8, 3)), codes={"SW403", "SW406"})
class gradient_of_a_psum:
    """jax 3970: the gradient of a `psum` is each device's own without the replication check."""

    def right(w, x, *, mesh):
        def body(w, x):
            return lax.psum(jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w), "data")

        specs = (P(), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(w, x)

    def wrong(w, x, *, mesh):
        def body(w, x):
            loss = lambda w: lax.psum(jnp.sum(jnp.tanh(x @ w)), "data")  # noqa: E731  # wrong
            return jax.grad(loss)(w) / lax.axis_size("data")  # wrong

        specs = (P(), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(w, x)


@pair(mesh=DATA, args=lambda: (np.uint32([0, 7]), normal(8, 3)), codes={"SW106"})
class the_same_noise_everywhere:
    """aimz 292: the key is replicated, so that every shard draws the same noise."""

    def right(key, x, *, mesh):
        noise = jax.random.normal(jax.random.wrap_key_data(jnp.asarray(key)), x.shape)
        add = shard_map(lambda x, n: x + n, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
        return add(x, noise)

    def wrong(key, x, *, mesh):
        def body(key, x):
            key = jax.random.wrap_key_data(key)
            return x + jax.random.normal(key, x.shape)  # wrong

        specs = (P(), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("data"))(key, x)


def library(reduce):
    """A transform with a gradient of its own, as a library brings it."""

    @jax.custom_vjp
    def transform(w, x):
        return jnp.sin(x @ w)

    def forward(w, x):
        return transform(w, x), (w, x)

    def backward(kept, ct):
        w, x = kept
        inner = ct * jnp.cos(x @ w)
        return reduce(x.T @ inner), inner @ w.T

    transform.defvjp(forward, backward)
    return transform


@pair(mesh=DATA, args=lambda: (normal(3, 2), normal(8, 3)), codes={"SW403", "SW406"})
class a_library_without_the_sum:
    """jax-finufft 226: a library's gradient is each device's own while its result is right."""

    def right(w, x, *, mesh):
        def body(w, x):
            own = library(lambda g: lax.psum(g, "data"))
            return jax.grad(lambda w: jnp.sum(own(w, x) ** 2))(w)

        specs = (P(), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(w, x)

    def wrong(w, x, *, mesh):
        def body(w, x):
            own = library(lambda g: g)
            return jax.grad(lambda w: jnp.sum(own(w, x) ** 2))(w)  # wrong

        specs = (P(), P("data"))
        return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(w, x)
