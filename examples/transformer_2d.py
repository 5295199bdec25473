"""A transformer block on two axes: the batch over `data`, heads and hidden units over `model`.

Placement: device (i, j) has part i of the batch, and part j of the attention heads and of the
MLP's hidden units. The layer norms, and the activations between the two halves of the block, are
the same along `model`.
Communication: forward, one `psum` over `model` after attention and one after the MLP, each of the
size of the activations, and a `pmean` of the loss over `data`. Backward, JAX adds the rest: the
same two over `model` for the gradient of the activations, and a `psum` over `data` of the gradient
of each parameter.

The trap: a gradient must be summed over the axes along which its parameter is replicated, and over
no other: `data` for the matrices, both for the layer norms. Under `shard_map` with its replication
check (the default), `grad` of a loss that is the same everywhere gets this right by itself. So the
loss is reduced first, and the gradients are not touched again.
"""

import jax
import jax.numpy as jnp
from _gallery import compare, normals, shapes
from jax import P

import shardwise as sw

AXES = ("data", "model")
SPECS = {
    "norm1": P(),
    "qkv": P(None, None, "model", None),
    "out": P("model", None, None),
    "norm2": P(),
    "w1": P(None, "model"),
    "w2": P("model", None),
}


def norm(x, scale):
    x = x - x.mean(-1, keepdims=True)
    return scale * x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def attention(params, x):
    """Causal attention of the heads that are here."""
    q, k, v = jnp.einsum("btd,sdhf->sbhtf", x, params["qkv"])
    scores = jnp.einsum("bhqf,bhkf->bhqk", q, k) / q.shape[-1] ** 0.5
    mask = jnp.tri(x.shape[1], dtype=bool)
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    return jnp.einsum("bhqk,bhkf,hfd->bqd", weights, v, params["out"])


def block(params, x, reduce=lambda partial: partial):
    """The block; `reduce` adds what the other heads and hidden units contribute."""
    x = x + reduce(attention(params, norm(x, params["norm1"])))
    hidden = jax.nn.gelu(norm(x, params["norm2"]) @ params["w1"])
    return x + reduce(hidden @ params["w2"])


def body(params, x, y):
    """What one device does with its part of the batch, its heads and its hidden units."""

    def loss_fn(params):
        out = block(params, x, reduce=lambda partial: jax.lax.psum(partial, "model"))
        return jax.lax.pmean(jnp.mean((out - y) ** 2), "data")

    return jax.value_and_grad(loss_fn)(params)


def step(params, x, y, *, mesh):
    """The loss and its gradient with respect to the parameters."""
    sharded = jax.shard_map(
        body, mesh=mesh, in_specs=(SPECS, P("data"), P("data")), out_specs=(P(), SPECS)
    )
    return sharded(params, x, y)


def reference(params, x, y):
    """The same on one device."""
    return jax.value_and_grad(lambda params: jnp.mean((block(params, x) - y) ** 2))(params)


def example_args(seed=0, examples=8, length=6, features=8, heads=8, head=4, hidden=32):
    """Parameters, inputs and targets, as `step` and `reference` take them."""
    normal = normals(seed)
    params = {
        "norm1": jnp.ones(features),
        "qkv": normal(3, features, heads, head, scale=features**-0.5),
        "out": normal(heads, head, features, scale=(heads * head) ** -0.5),
        "norm2": jnp.ones(features),
        "w1": normal(features, hidden, scale=features**-0.5),
        "w2": normal(hidden, features, scale=hidden**-0.5),
    }
    shape = (examples, length, features)
    return params, normal(*shape), normal(*shape)


def large():
    """A block of a model of 70 billion parameters, as shapes."""
    batch = {"examples": 512, "length": 4096}
    model = {"features": 8192, "heads": 64, "head": 128, "hidden": 28672}
    return step, shapes(example_args, jnp.bfloat16, **batch, **model)


@sw.case(
    mesh={"data": [1, 2, 4], "model": [1, 2, 4]},
    reference=reference,
    explain=large,
    explain_mesh={"data": 64, "model": 8},
)
def transformer_block():
    """Declare the program for `shardwise check`, `prove`, `inspect` and `explain`."""
    return step, example_args()


def main():
    meshes = [{"data": data, "model": model} for data, model in ((1, 1), (4, 2), (8, 8))]
    compare("Transformer block", step, reference, example_args(), meshes)


if __name__ == "__main__":
    main()
