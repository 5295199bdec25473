import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def loss_and_gradient(w, x, y, mask, *, mesh):
    axes = ("data", "seq")

    def body(w, x, y, mask):
        count = lax.psum(jnp.sum(mask), axes)
        local = lambda w: jnp.sum(mask * (x @ w - y) ** 2) / count
        own = lax.pcast(w, axes, to="varying")
        loss, gradient = jax.value_and_grad(local)(own)
        return lax.psum(loss, axes), lax.pmean(lax.psum(gradient, "data"), "seq")

    specs = (P(), P("data", "seq"), P("data", "seq"), P("data", "seq"))
    return shard_map(body, mesh=mesh, in_specs=specs, out_specs=(P(), P()))(w, x, y, mask)
