import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def attention(q, k, v, *, mesh):
    n = mesh.shape["seq"]
    ring = [(i, (i + 1) % n) for i in range(n)]

    def body(q, k, v):
        total = jnp.zeros_like(q)
        for turn in range(n):
            total = total + jax.nn.softmax(q @ k.T * q.shape[1] ** -0.5, axis=1) @ v
            k, v = lax.ppermute((k, v), "seq", ring)
        return total / n

    return shard_map(body, mesh=mesh, in_specs=P("seq"), out_specs=P("seq"))(q, k, v)
