import jax.numpy as jnp
import optax
from flax import nnx


def data_parallel_step(seed, x_batch, y_batch, num_devices, lr):
    model = nnx.Linear(x_batch.shape[-1], y_batch.shape[-1], rngs=nnx.Rngs(int(seed)))
    optimizer = nnx.Optimizer(model, optax.sgd(float(lr)), wrt=nnx.Param)

    def loss_fn(model, x, y):
        return jnp.mean((model(x) - y) ** 2)

    loss, grads = nnx.value_and_grad(loss_fn)(model, x_batch, y_batch)
    optimizer.update(model, grads)
    return jnp.array([float(loss)])
