import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def mlp(w1, b1, w2, b2, x, *, mesh):
    def body(w1, b1, w2, b2, x):
        # Split by rows first, so that the products are parts of the hidden layer.
        hidden = jnp.tanh(x @ w1 + b1)
        hidden = lax.psum(hidden, "model")
        return hidden @ w2 + b2

    specs = (P("model"), P(), P(), P(), P(None, "model"))
    return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(w1, b1, w2, b2, x)
