import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def embed(table, tokens, *, mesh):
    def body(table, tokens):
        size = table.shape[0]
        place = tokens - lax.axis_index("model") * size
        mine = (place >= 0) & (place < size)
        rows = table[jnp.clip(place, 0, size - 1)]
        return lax.psum(jnp.where(mine[:, None], rows, 0.0), "model")

    return shard_map(body, mesh=mesh, in_specs=(P("model"), P()), out_specs=P())(table, tokens)
