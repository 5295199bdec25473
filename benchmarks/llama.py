"""A training step of Llama-3.1-405B's shapes: what `prove` is measured on.

Data parallel over `data`, tensor parallel over `model`: heads, hidden units and the vocabulary are
split. Grouped-query attention with rotary positions, RMS norms, SwiGLU, a vocabulary-parallel
embedding and cross-entropy, forward, backward, and an update of plain SGD in float32.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import P, lax


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The shapes of a model."""

    layers: int = 126
    width: int = 16_384
    heads: int = 128
    kv_heads: int = 8
    hidden: int = 53_248
    vocabulary: int = 128_256
    batch: int = 128
    length: int = 128


SPECS = {
    "norm1": P(),
    "q": P(None, "model", None),
    "kv": P(None, None, "model", None),
    "out": P("model", None, None),
    "norm2": P(),
    "gate": P(None, "model"),
    "up": P(None, "model"),
    "down": P("model", None),
}


def shapes(sizes: Sizes, scanned: bool) -> tuple[Any, Any]:
    """Parameters and tokens, as shapes."""
    head = sizes.width // sizes.heads

    def shape(*dims: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    layer = {
        "norm1": shape(sizes.width),
        "q": shape(sizes.width, sizes.heads, head),
        "kv": shape(2, sizes.width, sizes.kv_heads, head),
        "out": shape(sizes.heads, head, sizes.width),
        "norm2": shape(sizes.width),
        "gate": shape(sizes.width, sizes.hidden),
        "up": shape(sizes.width, sizes.hidden),
        "down": shape(sizes.hidden, sizes.width),
    }
    if scanned:
        layers = jax.tree.map(lambda x: shape(sizes.layers, *x.shape), layer)
    else:
        layers = [layer] * sizes.layers
    params = {
        "embed": shape(sizes.vocabulary, sizes.width),
        "layers": layers,
        "norm": shape(sizes.width),
        "head": shape(sizes.width, sizes.vocabulary),
    }
    tokens = jax.ShapeDtypeStruct((sizes.batch, sizes.length), jnp.int32)
    return params, tokens


def specs(params: Any, scanned: bool) -> Any:
    """How the parameters are split."""
    layer = {key: P(None, *spec) for key, spec in SPECS.items()} if scanned else SPECS
    layers = layer if scanned else [layer] * len(params["layers"])
    return {"embed": P("model"), "layers": layers, "norm": P(), "head": P(None, "model")}


def norm(x, scale):
    """Root mean square."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale


def rotate(x):
    """Rotary positions."""
    half = x.shape[-1] // 2
    rate = 500_000.0 ** -(jnp.arange(half) / half)
    angle = jnp.arange(x.shape[1])[:, None] * rate
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def block(params, x):
    """One layer, with the heads and hidden units that are here."""
    y = norm(x, params["norm1"]).astype(jnp.bfloat16)
    q = rotate(jnp.einsum("btd,dhf->bthf", y, params["q"].astype(jnp.bfloat16)))
    k, v = jnp.einsum("btd,sdhf->sbthf", y, params["kv"].astype(jnp.bfloat16))
    k = rotate(k)
    group = q.shape[2] // k.shape[2]
    q = q.reshape(*q.shape[:2], k.shape[2], group, q.shape[3])
    scores = jnp.einsum("bqhgf,bkhf->bhgqk", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
    mask = jnp.tri(q.shape[1], dtype=bool)
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)).astype(jnp.bfloat16)
    mixed = jnp.einsum("bhgqk,bkhf->bqhgf", weights, v)
    mixed = mixed.reshape(*mixed.shape[:2], -1, mixed.shape[-1])
    out = jnp.einsum("bqhf,hfd->bqd", mixed, params["out"].astype(jnp.bfloat16))
    x = x + lax.psum(out.astype(jnp.float32), "model")
    y = norm(x, params["norm2"]).astype(jnp.bfloat16)
    hidden = jax.nn.silu(y @ params["gate"].astype(jnp.bfloat16))
    hidden = hidden * (y @ params["up"].astype(jnp.bfloat16))
    out = hidden @ params["down"].astype(jnp.bfloat16)
    return x + lax.psum(out.astype(jnp.float32), "model")


def embed(table, tokens):
    """Rows of a table whose rows are split."""
    local = tokens - lax.axis_index("model") * len(table)
    here = (local >= 0) & (local < len(table))
    rows = table[jnp.clip(local, 0, len(table) - 1)]
    return lax.psum(jnp.where(here[..., None], rows, 0), "model")


def cross_entropy(logits, targets):
    """Of logits whose vocabulary is split."""
    size = logits.shape[-1]
    peak = lax.pmax(lax.stop_gradient(logits).max(-1), "model")
    total = lax.psum(jnp.exp(logits - peak[..., None]).sum(-1), "model")
    local = targets - lax.axis_index("model") * size
    here = (local >= 0) & (local < size)
    own = jnp.take_along_axis(logits, jnp.clip(local, 0, size - 1)[..., None], -1)[..., 0]
    own = lax.psum(jnp.where(here, own, 0), "model")
    return jnp.log(total) + peak - own


def loss_of(params, tokens, scanned):
    """The mean loss over all devices."""
    x = embed(params["embed"], tokens)
    layer = jax.checkpoint(block)
    if scanned:
        x, _ = lax.scan(lambda x, own: (layer(own, x), None), x, params["layers"])
    else:
        for own in params["layers"]:
            x = layer(own, x)
    logits = norm(x, params["norm"]) @ params["head"]
    losses = cross_entropy(logits[:, :-1], tokens[:, 1:])
    return lax.pmean(jnp.mean(losses), "data")


def make_step(scanned: bool, wrong: bool = False):
    """A step: the loss and the new parameters. The wrong one averages the gradients again."""

    def body(params, tokens):
        loss, grads = jax.value_and_grad(loss_of)(params, tokens, scanned)
        if wrong:
            grads = jax.tree.map(lambda g: lax.psum(g, "data"), grads)
        return loss, jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)

    def step(params, tokens, *, mesh):
        own = specs(params, scanned)
        return jax.shard_map(body, mesh=mesh, in_specs=(own, P("data")), out_specs=(P(), own))(
            params, tokens
        )

    return step
