import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def weighted_mean(values, weights, *, mesh):
    def body(values, weights):
        weight = lax.pmean(jnp.sum(weights), "data")
        return lax.psum(jnp.sum(weights * values), "data") / weight

    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(values, weights)
