import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def attention(q, k, v, *, mesh):
    n = mesh.shape["seq"]
    ring = [(i, (i + 1) % n) for i in range(n)]

    def body(q, k, v):
        scale = q.shape[1] ** -0.5
        m = jnp.full_like(q[:, 0], -jnp.inf)
        l = jnp.zeros_like(q[:, 0])
        o = jnp.zeros_like(q)
        for turn in range(n):
            s = q @ k.T * scale
            new = jnp.maximum(m, s.max(axis=1))
            shrink = jnp.exp(m - new)
            p = jnp.exp(s - new[:, None])
            l = l * shrink + p.sum(axis=1)
            o = o * shrink[:, None] + p @ v
            m = new
            if turn < n - 1:
                k, v = lax.ppermute((k, v), "seq", ring)
        return o / l[:, None]

    return shard_map(body, mesh=mesh, in_specs=P("seq"), out_specs=P("seq"))(q, k, v)
