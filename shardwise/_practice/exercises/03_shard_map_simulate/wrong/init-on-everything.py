import flax.linen as nn
import jax
import jax.numpy as jnp


def shard_map_simulate(seed, x, num_shards, features):
    num_shards, features = int(num_shards), int(features)
    model = nn.Dense(features)
    params = model.init(jax.random.PRNGKey(int(seed)), x)
    outs = [model.apply(params, s) for s in jnp.split(x, num_shards)]
    return jnp.concatenate(outs, axis=0).reshape(-1)
