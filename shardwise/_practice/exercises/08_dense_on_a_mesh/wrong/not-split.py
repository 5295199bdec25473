import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def dense(params, x, *, mesh):
    def body(params, rows):
        return rows @ params["kernel"] + params["bias"]

    return shard_map(body, mesh=mesh, in_specs=P(), out_specs=P())(params, x)
