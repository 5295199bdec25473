import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def weighted_mean(values, weights, *, mesh):
    def body(values, weights):
        total = lax.psum(jnp.sum(weights * values), "data")
        weight = lax.psum(jnp.sum(weights), "data")
        return total / weight

    return shard_map(body, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P())(values, weights)
