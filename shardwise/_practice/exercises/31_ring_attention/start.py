import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def attention(q, k, v, *, mesh):
    n = mesh.shape["seq"]
    ring = [(i, (i + 1) % n) for i in range(n)]

    def body(q, k, v):
        scale = q.shape[1] ** -0.5
        s = q @ k.T * scale  # only this device's block
        p = jnp.exp(s - s.max(axis=1, keepdims=True))
        return p @ v / p.sum(axis=1, keepdims=True)

    return shard_map(body, mesh=mesh, in_specs=P("seq"), out_specs=P("seq"))(q, k, v)
