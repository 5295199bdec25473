import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def masked_mean(x, mask, *, mesh):
    def body(x, mask):
        return lax.pmean(jnp.mean(jnp.where(mask > 0, x, 0.0)), "data")

    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x, mask)
