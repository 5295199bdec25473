"""One training step of a decoder-only transformer, in every form the benchmarks compare.

Twelve layers in a `lax.scan` with rematerialisation, computing in bfloat16 on float32 params, the
embedding tied to the output.

    python benchmarks/transformer.py                    # memory, time and compile time
    python benchmarks/transformer.py --size large       # for an accelerator
    python benchmarks/transformer.py --rounds 0         # memory alone, which needs no quiet machine
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from forms import Forms, compare
from jax import lax

Params = dict[str, Any]


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


FORMS = Forms(mean_loss)


def make(size: Size) -> tuple[Params, jax.Array]:
    return make_params(size), make_tokens(size)


if __name__ == "__main__":
    compare("A transformer", FORMS, SIZES, make)
