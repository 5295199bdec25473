import flax.linen as nn
import jax
import jax.numpy as jnp


def shard_map_simulate(seed, x, num_shards, features):
    model = nn.Dense(int(features))
    shards = jnp.split(x, int(num_shards))
    params = model.init(jax.random.PRNGKey(int(seed)), shards[0])
    return jnp.concatenate([model.apply(params, s) for s in shards], axis=0)
