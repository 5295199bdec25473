import jax
import jax.numpy as jnp
import numpy as np
from jax import shard_map
from jax.sharding import Mesh, PartitionSpec


def shard_map_vs_vmap(x):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    by_row = jax.vmap(lambda r: jnp.sum(r**2))

    def per_shard(rows):
        return by_row(rows)

    spec = PartitionSpec("data")
    by_shard_map = shard_map(per_shard, mesh=mesh, in_specs=spec, out_specs=spec)(x)
    return jnp.stack([by_shard_map, by_row(x)], axis=0)
