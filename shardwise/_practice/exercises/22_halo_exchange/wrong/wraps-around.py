import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def smooth(x, *, mesh):
    n = mesh.shape["data"]

    def body(part):
        left = lax.ppermute(part[-1:], "data", [(i, (i + 1) % n) for i in range(n)])
        right = lax.ppermute(part[:1], "data", [((i + 1) % n, i) for i in range(n)])
        padded = jnp.concatenate([left, part, right])
        return (padded[:-2] + padded[1:-1] + padded[2:]) / 3

    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)
