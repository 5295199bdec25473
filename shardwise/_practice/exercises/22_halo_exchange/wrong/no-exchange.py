import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def smooth(x, *, mesh):
    def body(part):
        padded = jnp.pad(part, 1)
        return (padded[:-2] + padded[1:-1] + padded[2:]) / 3

    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)
