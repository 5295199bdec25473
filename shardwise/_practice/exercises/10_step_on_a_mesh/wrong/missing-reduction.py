import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def train_step(w, x, y, *, mesh):
    def body(w, x, y):
        loss_fn = lambda w: jnp.mean((x @ w - y) ** 2)
        loss, gradient = jax.value_and_grad(loss_fn)(w)
        return w - 0.1 * gradient, loss

    specs = (P(), P("data"), P("data"))
    step = shard_map(body, mesh=mesh, in_specs=specs, out_specs=(P(), P()), check_vma=False)
    return step(w, x, y)
