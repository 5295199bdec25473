import flax.linen as nn
import jax
import jax.numpy as jnp


def shard_map_simulate(seed, x, num_shards, features):
    model = nn.Dense(int(features))
    chunk = x.shape[0] // int(num_shards)
    params = model.init(jax.random.PRNGKey(int(seed)), x[:chunk])
    outs = []
    for i in range(num_shards):
        outs.append(model.apply(params, x[i * chunk : (i + 1) * chunk]))
    return jnp.concatenate(outs).reshape(-1)
