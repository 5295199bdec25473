import jax
import jax.numpy as jnp
import optax
from flax import nnx


def data_parallel_step(seed, x_batch, y_batch, num_devices, lr):
    seed, num_devices, lr = int(seed), int(num_devices), float(lr)
    model = nnx.Linear(x_batch.shape[-1], y_batch.shape[-1], rngs=nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, optax.sgd(lr), wrt=nnx.Param)

    def loss_fn(model, x, y):
        return jnp.mean((model(x) - y) ** 2)

    chunk = x_batch.shape[0] // num_devices
    losses, gradients = [], []
    for i in range(num_devices):
        rows = slice(i * chunk, (i + 1) * chunk)
        loss, grads = nnx.value_and_grad(loss_fn)(model, x_batch[rows], y_batch[rows])
        losses.append(loss)
        gradients.append(grads)
    mean_loss = jnp.mean(jnp.stack(losses))
    average = jax.tree_util.tree_map(lambda *g: sum(g) / float(num_devices), *gradients)
    optimizer.update(model, average)
    return jnp.array([float(mean_loss)])
