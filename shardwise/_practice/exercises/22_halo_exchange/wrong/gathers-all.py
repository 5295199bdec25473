import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def smooth(x, *, mesh):
    def body(part):
        whole = jnp.pad(lax.all_gather(part, "data", tiled=True), 1)
        size = part.shape[0]
        near = lax.dynamic_slice(whole, (lax.axis_index("data") * size,), (size + 2,))
        return (near[:-2] + near[1:-1] + near[2:]) / 3

    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)
