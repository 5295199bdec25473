import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def cross_entropy(logits, target, *, mesh):
    def body(logits, target):
        size = logits.shape[1]
        largest = lax.pmax(jnp.max(logits, axis=1), "model")
        total = lax.psum(jnp.sum(jnp.exp(logits - largest[:, None]), axis=1), "model")
        place = jnp.clip(target - lax.axis_index("model") * size, 0, size - 1)
        picked = lax.psum(jnp.take_along_axis(logits, place[:, None], axis=1)[:, 0], "model")
        return jnp.log(total) + largest - picked

    return shard_map(body, mesh=mesh, in_specs=(P(None, "model"), P()), out_specs=P())(logits, target)
