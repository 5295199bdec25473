import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def dense(kernel, bias, x, *, mesh):
    def body(kernel, bias, x):
        return x @ kernel + bias

    specs = (P("model"), P(), P(None, "model"))
    return shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(kernel, bias, x)
