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

        def local(w):
            return jnp.sum(mask * (x @ w - y) ** 2) / lax.psum(jnp.sum(mask), axes)

        own = lax.pcast(w, axes, to="varying")
        gradient = lax.psum(jax.grad(local)(own), "data")
        return loss_fn(w), lax.pmean(gradient, "seq")

    specs = (P(), P("data", "seq"), P("data", "seq"), P("data", "seq"))
    return shard_map(body, mesh=mesh, in_specs=specs, out_specs=(P(), P()))(w, x, y, mask)
