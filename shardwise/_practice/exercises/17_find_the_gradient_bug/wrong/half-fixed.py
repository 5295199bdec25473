import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


LEARNING_RATE = 0.05


def train_step(params, x, y, *, mesh):
    def body(params, x, y):
        def loss_fn(params):
            return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

        own = {"w": lax.pcast(params["w"], "data", to="varying"), "b": params["b"]}
        loss, grads = jax.value_and_grad(loss_fn)(own)
        grads = jax.tree.map(lambda g: lax.pmean(g, "data"), grads)
        new = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads)
        return new, lax.pmean(loss, "data")

    specs = (P(), P("data"), P("data"))
    return shard_map(body, mesh=mesh, in_specs=specs, out_specs=(P(), P()))(params, x, y)
