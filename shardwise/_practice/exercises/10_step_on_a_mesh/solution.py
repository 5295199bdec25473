import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


LEARNING_RATE = 0.1


def train_step(w, x, y, *, mesh):
    def body(w, x, y):
        def loss_fn(w):
            return lax.pmean(jnp.mean((x @ w - y) ** 2), "data")

        loss, gradient = jax.value_and_grad(loss_fn)(w)
        return w - LEARNING_RATE * gradient, loss

    specs = (P(), P("data"), P("data"))
    return shard_map(body, mesh=mesh, in_specs=specs, out_specs=(P(), P()))(w, x, y)
