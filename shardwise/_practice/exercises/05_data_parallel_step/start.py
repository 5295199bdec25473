import jax
import jax.numpy as jnp
import optax
from flax import nnx


def data_parallel_step(seed, x_batch, y_batch, num_devices, lr):
    raise NotImplementedError
