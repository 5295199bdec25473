import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def weighted_mean(values, weights, *, mesh):
    def body(values, weights):
        return lax.pmean(jnp.sum(weights * values) / jnp.sum(weights), "data")  # not this one

    return shard_map(body, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P())(values, weights)
