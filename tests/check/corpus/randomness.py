"""Random numbers that follow the sharding: right on each mesh, another run on each."""

import jax
import jax.numpy as jnp
from jax import P, lax, shard_map

from tests.support import normal

from . import pair

DATA = {"data": [1, 4]}
SPECS = (P(), P("data"))


def args():
    return jax.random.key_data(jax.random.key(0)), normal(8, 3)


def key_of(data):
    return jax.random.wrap_key_data(data)


def own_keys(key, x):
    """One key for each example, from its global number."""
    first = lax.axis_index("data") * len(x)
    return jax.vmap(jax.random.fold_in, (None, 0))(key_of(key), first + jnp.arange(len(x)))


def right_dropout(key, x, *, mesh):
    def body(key, x):
        keep = jax.vmap(lambda k: jax.random.bernoulli(k, 0.5, (3,)))(own_keys(key, x))
        return x * keep

    return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P("data"))(key, x)


@pair(mesh=DATA, args=args, codes={"SW106"})
class same_mask_on_every_device:
    """One key, one mask of local shape: every device drops the same entries."""

    right = right_dropout

    def wrong(key, x, *, mesh):
        def body(key, x):
            keep = jax.random.bernoulli(key_of(key), 0.5, x.shape)  # wrong
            return x * keep  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P("data"))(key, x)


@pair(mesh=DATA, args=args, codes={"SW106"})
class mask_by_device:
    """A key for each device: the entries that are dropped depend on how many there are."""

    right = right_dropout

    def wrong(key, x, *, mesh):
        def body(key, x):
            own = jax.random.fold_in(key_of(key), lax.axis_index("data"))
            keep = jax.random.bernoulli(own, 0.5, x.shape)  # wrong
            return x * keep  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P("data"))(key, x)


@pair(mesh=DATA, args=args, codes={"SW106"})
class noise_in_the_gradient:
    """Noise of local shape, averaged into the loss."""

    def right(key, x, *, mesh):
        noise = 0.3 * jax.random.normal(key_of(key), x.shape)

        def body(noise, x):
            return lax.pmean(jnp.mean((x + noise) ** 2), "data")

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(noise, x)

    def wrong(key, x, *, mesh):
        def body(key, x):
            noise = 0.3 * jax.random.normal(key_of(key), x.shape)  # wrong
            return lax.pmean(jnp.mean((x + noise) ** 2), "data")  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(key, x)


@pair(mesh=DATA, args=args, codes={"SW106"})
class weights_made_where_they_live:
    """Split parameters are initialised inside: each device draws the same numbers."""

    def right(key, x, *, mesh):
        w = jax.random.normal(key_of(key), (8, 3))

        def body(w, x):
            return w * x

        return shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(w, x)

    def wrong(key, x, *, mesh):
        def body(key, x):
            w = jax.random.normal(key_of(key), x.shape)  # wrong
            return w * x  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P("data"))(key, x)


@pair(mesh=DATA, args=args, codes={"SW106"})
class shuffled_within_a_device:
    """A shuffle of the batch only mixes what is on one device."""

    def right(key, x, *, mesh):
        x = jax.random.permutation(key_of(key), jnp.asarray(x))
        return shard_map(lambda x: 2 * x, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    def wrong(key, x, *, mesh):
        def body(key, x):
            return 2 * jax.random.permutation(key_of(key), x)  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P("data"))(key, x)


@pair(mesh=DATA, args=args, codes={"SW106", "SW406"})
class samples_of_the_first_device:
    """Each device samples with its own key, and the first one's samples are returned."""

    def right(key, x, *, mesh):
        def body(key, x):
            logits = lax.pmean(x.mean(0), "data")
            return logits + jax.random.gumbel(key_of(key), (3,))

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P())(key, x)

    def wrong(key, x, *, mesh):
        def body(key, x):
            logits = lax.pmean(x.mean(0), "data")
            own = jax.random.fold_in(key_of(key), lax.axis_index("data"))  # wrong
            return logits + jax.random.gumbel(own, (3,))  # wrong

        return shard_map(body, mesh=mesh, in_specs=SPECS, out_specs=P(), check_vma=False)(key, x)
