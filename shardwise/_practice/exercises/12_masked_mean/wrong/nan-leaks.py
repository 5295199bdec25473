import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def masked_mean(x, mask, *, mesh):
    def body(x, mask):
        total, count = lax.psum((jnp.sum(x * mask), jnp.sum(mask)), "data")
        return total / count

    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x, mask)
