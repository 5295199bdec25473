"""Random numbers: the same on every device, or different by the device's index."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ...support import normal, vary
from ..table import program
from . import X3, X4, XY


@program(XY, args=lambda s: (normal(8, 3),))
def keys_folded_with_the_index(spmd, x):
    def body(x):
        key = jax.random.key(7)
        mine = jax.random.fold_in(key, lax.axis_index("x"))
        for axis in spmd.axes[1:]:
            mine = jax.random.fold_in(mine, lax.axis_index(axis))
        first, second = jax.random.split(mine)
        keep = jax.random.bernoulli(first, 0.5, x.shape)
        return {
            "dropout": vary(jnp.where(keep, x * 2, 0), spmd.axes),
            "normal": jax.random.normal(second, (2, 3)),
            "shared": vary(jax.random.uniform(key, (2,)), spmd.axes),
            "data": jax.random.key_data(mine)[None],
        }

    return spmd(body, P("x"), P(spmd.axes))(x)


@program(X3, args=lambda s: (normal(12, 3), jax.random.key_data(jax.random.key(3))))
def draws_of_every_kind(spmd, x, data):
    def body(x, data):
        key = jax.random.fold_in(jax.random.wrap_key_data(data), lax.axis_index("x"))
        keys = jax.random.split(key, 3)
        order = jax.random.permutation(keys[0], x.shape[0])
        return {
            "permutation": order,
            "permuted": x[order],
            "categorical": jax.random.categorical(keys[1], x),
            "randint": jax.random.randint(keys[2], (4,), 0, 100),
        }

    return spmd(body, (P("x"), P()), P("x"))(x, data)


@program(X4, args=lambda s: (normal(8, 3),))
def keys_as_arguments_and_results(spmd, x):
    keys = jax.random.split(jax.random.key(11), spmd.sizes["x"])

    def body(x, keys):
        new = jax.random.split(keys[0], 2)
        return x + jax.random.normal(new[0], x.shape), new[1:]

    out, keys = spmd(body, (P("x"), P("x")), (P("x"), P("x")))(x, keys)
    return out, jax.random.key_data(keys)


@program(X4, args=lambda s: (normal(8, 3),))
def old_keys_in_a_loop_with_collectives(spmd, x):
    def body(x):
        key = jax.random.fold_in(jax.random.PRNGKey(5), lax.axis_index("x"))

        def step(carry, _):
            key, h = carry
            key, now = jax.random.split(key)
            noise = jax.random.normal(now, h.shape) * 0.1
            return (key, h + noise + lax.pmean(noise, "x")), noise.sum()

        (key, out), noises = lax.scan(step, (key, x), None, length=3)
        return out, noises, key[None]

    return spmd(body, P("x"), P("x"))(x)


@program(X4, args=lambda s: (normal(8, 3), normal(3)), around=jax.grad)
def gradient_of_the_simulated_through_dropout(spmd, x, w):
    def body(x, w):
        key = jax.random.fold_in(jax.random.key(0), lax.axis_index("x"))
        keep = jax.random.bernoulli(key, 0.7, x.shape)
        return lax.pmean(jnp.sum(jnp.where(keep, jnp.tanh(x * w), 0.0)), "x")

    return spmd(body, (P("x"), P()), P())(x, w)


def _draws(spmd, x, impl):
    def body(x):
        index = lax.axis_index("x")
        mine = jax.random.fold_in(jax.random.key(5, impl=impl), index)
        first, second = jax.random.split(mine)
        third = jax.random.fold_in(jax.random.split(second, 3)[1], index * 7)
        chosen = jax.random.split(jax.random.key(3, impl=impl), spmd.sizes["x"])[index]
        return {
            "bits": jax.random.bits(first, (3,)),
            "uniform": jax.random.uniform(third, x.shape),
            "normal": jax.random.normal(chosen, x.shape),
            "permutation": jax.random.permutation(third, 5),
            "key": jax.random.key_data(third),
        }

    return spmd(body, P("x"), P("x"))(x)


@program(X4, X3, args=lambda s: (normal(12, 2),), checks=(False,))
def keys_of_the_hardware_split_and_folded(spmd, x):
    return _draws(spmd, x, "rbg")


@program(X4, X3, args=lambda s: (normal(12, 2),), checks=(False,))
def unsafe_keys_of_the_hardware_split_and_folded(spmd, x):
    return _draws(spmd, x, "unsafe_rbg")
