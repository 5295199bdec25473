import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def zero_step(w, momentum, x, y, *, mesh):
    def body(w, m, x, y):
        own = lax.pcast(w, "data", to="varying")
        g = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(own)
        start = lax.axis_index("data") * m.shape[0]
        g = lax.dynamic_slice_in_dim(g, start, m.shape[0])
        mine = lax.dynamic_slice_in_dim(own, start, m.shape[0])
        m = 0.9 * m + g
        return mine - 0.1 * m, m

    specs = (P(), P("data"), P("data"), P("data"))
    out = (P("data"), P("data"))
    return shard_map(body, mesh=mesh, in_specs=specs, out_specs=out)(w, momentum, x, y)
