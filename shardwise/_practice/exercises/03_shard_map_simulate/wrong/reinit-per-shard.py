import flax.linen as nn
import jax
import jax.numpy as jnp


def shard_map_simulate(seed, x, num_shards, features):
    num_shards, features = int(num_shards), int(features)
    model = nn.Dense(features)
    chunk = x.shape[0] // num_shards
    outs = []
    for i in range(num_shards):
        shard = x[i * chunk : (i + 1) * chunk]
        params = model.init(jax.random.PRNGKey(int(seed) + i), shard)
        outs.append(model.apply(params, shard))
    return jnp.concatenate(outs, axis=0).reshape(-1)
