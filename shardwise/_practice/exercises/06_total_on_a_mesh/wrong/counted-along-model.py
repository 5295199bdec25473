import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def total(x, *, mesh):
    body = lambda part: lax.psum(jnp.sum(part), ("data", "model"))
    return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)(x)
