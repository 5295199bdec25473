import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def transpose(x, *, mesh):
    def body(rows):
        columns = lax.all_to_all(rows, "data", split_axis=1, concat_axis=0, tiled=True)
        return columns.T

    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)
