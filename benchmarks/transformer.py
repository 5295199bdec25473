"""One training step of a decoder-only transformer, in every form the benchmarks compare.

Twelve layers in a `lax.scan` with rematerialisation, computing in bfloat16 on float32 params, the
embedding tied to the output. Every form takes `(params, tokens)`, returns `(loss, new params)` and
computes the same numbers up to rounding.

    python benchmarks/transformer.py                    # memory, time and compile time
    python benchmarks/transformer.py --size large       # for an accelerator
    python benchmarks/transformer.py --rounds 0         # memory alone, which needs no quiet machine
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

Params = dict[str, Any]
Step = Callable[[Params, jax.Array], tuple[jax.Array, Params]]
LEARNING_RATE = 0.1


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the model and its batch are."""

    width: int
    heads: int
    length: int
    vocabulary: int
    batch: int
    layers: int = 12


SIZES = {
    "tiny": Size(32, 2, 16, 128, 64, 4),
    "small": Size(128, 4, 64, 2048, 256),
    "medium": Size(256, 4, 128, 4096, 256),
    "large": Size(1024, 16, 512, 32_768, 256),
}


def make_params(size: Size) -> Params:
    """Float32 params; those of the layers are stacked in front."""
    d, n = size.width, size.layers
    shapes = {
        "qkv": (d, 3, size.heads, d // size.heads),
        "out": (size.heads, d // size.heads, d),
        "up": (d, 4 * d),
        "down": (4 * d, d),
    }
    keys = iter(jax.random.split(jax.random.key(0), 8))

    def normal(shape: tuple[int, ...]) -> jax.Array:
        return jax.random.normal(next(keys), shape) * 0.02

    layers = {name: normal((n, *shape)) for name, shape in shapes.items()}
    layers |= {"first": jnp.ones((n, d)), "second": jnp.ones((n, d))}
    return {
        "embedding": normal((size.vocabulary, d)),
        "positions": normal((size.length, d)),
        "layers": layers,
        "last": jnp.ones(d),
    }


def make_tokens(size: Size) -> jax.Array:
    """A batch: the inputs and, one further on, the targets."""
    shape = (size.batch, size.length + 1)
    return jax.random.randint(jax.random.key(1), shape, 0, size.vocabulary)


def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype)


def layer(x: jax.Array, own: Params) -> jax.Array:
    """Attention and a perceptron, each with a residual connection."""
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), own)
    q, k, v = jnp.einsum("btd,dchk->cbthk", normed(x, own["first"]), half["qkv"])
    scores = jnp.einsum("bthk,bshk->bhts", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9)).astype(x.dtype)
    mixed = jnp.einsum("bhts,bshk->bthk", weights, v)
    x = x + jnp.einsum("bthk,hkd->btd", mixed, half["out"])
    return x + jax.nn.gelu(normed(x, own["second"]) @ half["up"]) @ half["down"]


def mean_loss(params: Params, tokens: jax.Array) -> jax.Array:
    """The mean cross entropy of the next token."""
    embedding = params["embedding"].astype(jnp.bfloat16)
    x = embedding[tokens[:, :-1]] + params["positions"].astype(jnp.bfloat16)
    x, _ = lax.scan(jax.checkpoint(lambda x, own: (layer(x, own), None)), x, params["layers"])
    logits = (normed(x, params["last"]) @ embedding.T).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def descend(params: Params, grads: Params) -> Params:
    return jax.tree.map(lambda param, grad: param - LEARNING_RATE * grad, params, grads)


def unsharded(params: Params, tokens: jax.Array) -> tuple[jax.Array, Params]:
    loss, grads = jax.value_and_grad(mean_loss)(params, tokens)
    return loss, descend(params, grads)


def accumulated(shards: int) -> Step:
    """What one writes by hand to save memory: a scan over slices that adds up the gradients."""

    def step(params: Params, tokens: jax.Array) -> tuple[jax.Array, Params]:
        def add(total: Any, part: Any) -> tuple[Any, None]:
            found = jax.value_and_grad(mean_loss)(params, part)
            return jax.tree.map(jnp.add, total, found), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        (loss, grads), _ = lax.scan(add, zero, tokens.reshape(shards, -1, tokens.shape[-1]))
        return loss / shards, descend(params, jax.tree.map(lambda grad: grad / shards, grads))

    return step


def sharded(params: Params, tokens: jax.Array, *, mesh: Any) -> tuple[jax.Array, Params]:
    """The step as it is written for many devices: autodiff sums the gradients over them."""

    def body(params: Params, tokens: jax.Array) -> tuple[jax.Array, Params]:
        loss, grads = jax.value_and_grad(lambda p: lax.pmean(mean_loss(p, tokens), "data"))(params)
        return loss, descend(params, grads)

    split = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P()))
    return split(params, tokens)


def summed(params: Params, tokens: jax.Array, *, mesh: Any) -> tuple[jax.Array, Params]:
    """The same with the gradients summed by hand, once they are there: `pvary`, then `psum`."""

    def body(params: Params, tokens: jax.Array) -> tuple[jax.Array, Params]:
        own = jax.tree.map(lambda p: lax.pcast(p, "data", to="varying"), params)
        loss, grads = lax.pmean(jax.value_and_grad(mean_loss)(own, tokens), "data")
        return loss, descend(params, grads)

    split = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P()))
    return split(params, tokens)


def simulated(shards: int, at_once: int | str, step: Any = sharded) -> Step:
    return sw.simulate(step, mesh=sw.mesh(data=shards), at_once=at_once)
