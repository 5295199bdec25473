import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def pipeline(weights, x, *, mesh):
    def body(weights, x):
        h = x
        for layer in range(weights.shape[0]):
            h = jnp.tanh(h @ weights[layer])
        return lax.pmean(h, "stage")

    return shard_map(body, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P())(weights, x)
