import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def clipped(g, *, mesh):
    def body(part):
        local = jnp.sum(part**2)
        norm = jnp.sqrt(lax.psum(local, "data"))
        return jnp.where(local > 1.0, part / norm, part)

    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(g)
