import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def loss_and_gradient(w, x, y, mask, *, mesh):
    axes = ("data", "seq")

    def body(w, x, y, mask):
        def loss_fn(w):
            total = lax.psum(jnp.sum(mask * (x @ w - y) ** 2), axes)
            return total / lax.psum(jnp.sum(mask), axes)

        loss, gradient = jax.value_and_grad(loss_fn)(w)
        return loss, lax.psum(gradient, axes)

    specs = (P(), P("data", "seq"), P("data", "seq"), P("data", "seq"))
    return shard_map(body, mesh=mesh, in_specs=specs, out_specs=(P(), P()))(w, x, y, mask)
