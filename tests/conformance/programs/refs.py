"""Mutable refs: what is written is read, in the order of the program."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ...support import normal
from ..table import program
from . import X4


def args(sizes):
    return (normal(2 * sizes["x"]),)


@program(X4, args=args)
def a_ref_written_by_one_shard_map_and_read_after_another(spmd, x):
    ref = jax.new_ref(jnp.zeros(()))

    def body(x, ref):
        ref[...] += lax.psum(jnp.sum(jnp.sin(x)), "x")

    add = spmd(body, (P("x"), P()), None)
    add(x, ref)
    once = ref[...]
    add(x * once, ref)
    return once, ref[...]


@program(X4, args=args)
def a_ref_that_is_split(spmd, x):
    ref = jax.new_ref(x)
    n = spmd.sizes["x"]

    def body(ref):
        ref[...] = lax.ppermute(ref[...], "x", [(i, (i + 1) % n) for i in range(n)])
        return lax.psum(jnp.sum(ref[...] ** 2), "x")

    total = spmd(body, P("x"), P())(ref)
    return total, ref[...] * 2, jax.freeze(ref)


@program(X4, args=args)
def a_ref_in_the_body(spmd, x):
    def body(x):
        ref = jax.new_ref(jnp.zeros_like(x))
        ref[...] = x * 2
        shared = lax.psum(ref[...], "x")
        ref[0] = shared[1]
        ref[...] += shared
        held = ref[...]
        ref[...] = held * 0
        return held, lax.psum(held.sum(), "x"), jax.freeze(ref)

    return spmd(body, P("x"), (P("x"), P(), P("x")))(x)


@program(X4, args=args, checks=(False,))
def a_ref_in_loops_and_branches(spmd, x):
    def body(x):
        ref = jax.new_ref(jnp.zeros_like(x))

        def step(carry, scale):
            ref[...] += lax.pmean(carry, "x") * scale
            return carry * 2, ref[...].sum()

        last, seen = lax.scan(step, x, jnp.arange(3.0))

        def first():
            ref[0] = 7.0

        def second():
            ref[1] = ref[0] * 3.0

        lax.cond(lax.axis_index("x") > 1, first, second)
        lax.fori_loop(0, 2, lambda i, _: ref.__setitem__(i, ref[i] + 1.0), None)
        return ref[...], last, seen

    return spmd(body, P("x"), P("x"))(x)


@program(X4, args=args, checks=(False,), around=jax.grad)
def a_gradient_of_the_simulated_with_a_ref(spmd, x):
    def body(x):
        ref = jax.new_ref(jnp.sin(x))
        ref[...] *= lax.psum(ref[...], "x")
        return lax.psum(jnp.sum(ref[...]), "x")

    return spmd(body, P("x"), P())(x)
