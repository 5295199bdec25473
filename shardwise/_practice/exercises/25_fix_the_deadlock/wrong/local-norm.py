import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def clipped(g, *, mesh):
    def body(part):
        return part / jnp.maximum(1.0, jnp.sqrt(jnp.sum(part**2)))

    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(g)
