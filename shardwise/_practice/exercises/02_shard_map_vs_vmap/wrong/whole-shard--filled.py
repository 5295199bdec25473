import jax
import jax.numpy as jnp
import numpy as np
from jax import shard_map
from jax.sharding import Mesh, PartitionSpec


def shard_map_vs_vmap(x):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    spec = PartitionSpec("data")
    body = lambda rows: jnp.full(rows.shape[0], jnp.sum(rows**2))
    by_shard_map = shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(x)
    return jnp.stack([by_shard_map, jax.vmap(lambda r: jnp.sum(r**2))(x)], axis=0)
