import flax.linen as nn
import jax
import jax.numpy as jnp


def shard_map_simulate(seed, x, num_shards, features):
    seed, num_shards, features = int(seed), int(num_shards), int(features)
    model = nn.Dense(features)
    chunk_size = x.shape[0] // num_shards
    params = model.init(jax.random.PRNGKey(seed), x[:chunk_size])
    outs = []
    for i in range(num_shards):
        shard = jax.lax.dynamic_slice_in_dim(x, i * chunk_size, chunk_size, axis=0)
        outs.append(model.apply(params, shard))
    return jnp.concatenate(outs, axis=0).reshape(-1)
