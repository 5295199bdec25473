import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def row_norms(x, *, mesh):
    def body(rows):
        return jnp.sum(rows**2, axis=1)

    # 10 rows on 4 devices: something has to happen to x first, and to the result last.
    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)
