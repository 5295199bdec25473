import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def normalised(x, *, mesh):
    n_rows = x.shape[0]

    def body(rows):
        total = lax.all_gather(rows.sum(axis=0), "data").sum(axis=0)
        size = total.shape[0] // mesh.shape["data"]
        return lax.dynamic_slice(total, (lax.axis_index("data") * size,), (size,)) / n_rows

    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)
