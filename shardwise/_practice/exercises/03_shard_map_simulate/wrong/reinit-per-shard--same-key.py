import flax.linen as nn
import jax
import jax.numpy as jnp


def shard_map_simulate(seed, x, num_shards, features):
    num_shards, features = int(num_shards), int(features)
    model = nn.Dense(features)
    key = jax.random.PRNGKey(int(seed))
    outs = []
    for shard in jnp.split(x, num_shards):
        params = model.init(key, shard)
        outs.append(model.apply(params, shard))
    return jnp.concatenate(outs, axis=0).flatten()
