import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.shard_map import shard_map
from jax.sharding import Mesh, PartitionSpec


def shard_map_psum(x):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))

    def per_shard(y):
        return jnp.sum(y)

    f = shard_map(per_shard, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec())
    return f(x)
