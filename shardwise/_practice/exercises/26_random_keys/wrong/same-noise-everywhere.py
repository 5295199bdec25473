import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def noisy(seed, x, *, mesh):
    def body(rows):
        key = jax.random.key(seed)
        draw = lambda i: jax.random.normal(jax.random.fold_in(key, i), rows.shape[1:])
        return rows + jax.vmap(draw)(jnp.arange(rows.shape[0]))

    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)
