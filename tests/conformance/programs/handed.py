"""Derivatives of the simulated function that need what only some devices have computed.

JAX types a residual by what the branches of a `cond` hold, not by which device takes which. On
real devices each reads its own; a simulation that believes the type keeps the first one's.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from ...support import normal, vary
from ..table import program
from . import XY_ODD

FOUR = {"x": 2, "y": 2}
ALL = P(("x", "y"))


def args(sizes):
    n = sizes["x"] * sizes["y"]
    return normal(2 * n), normal(5), np.int32(1)


def here(axis="x"):
    return lax.axis_index(axis) > 0


def place():
    return 1.0 + lax.axis_index("x").astype("float32")


def mapped(spmd, branches):
    """`branches` of a local array, a table and an index that is the same everywhere."""

    def body(x, table, i):
        # Cast outside the branches: the cotangent of the cast is a sum over all devices.
        return vary(branches(x, vary(table, spmd.axes), i), spmd.axes)

    return spmd(body, (ALL, P(), P()), ALL)


def weighed(f):
    """A scalar of the results, different for every element."""
    return lambda x, table, i: jnp.sum(f(x, table, i) * jnp.cos(jnp.arange(x.size)))


def gradient(f):
    return jax.grad(weighed(f), argnums=(0, 1))


def pushed(f):
    return lambda x, table, i: jax.jvp(lambda *a: f(*a, i), (x, table), (jnp.sin(x), table))


def pulled(f):
    def run(x, table, i):
        out, pull = jax.vjp(lambda *a: f(*a, i), x, table)
        return out, pull(jax.tree.map(jnp.cos, out))

    return run


def linearized(f):
    return lambda x, table, i: jax.linearize(lambda *a: f(*a, i), x, table)[1](jnp.sin(x), table)


def batched(transform):
    def around(f):
        run = transform(f)
        return lambda x, table, i: jax.vmap(run, (0, 0, None))(
            jnp.stack([x, -x]), jnp.stack([table, 2 * table]), i
        )

    return around


@program(FOUR, args=args, around=gradient)
def a_cond_in_a_cond(spmd, x, table, i):
    def branches(q, table, i):
        return lax.cond(
            here(),
            lambda q: lax.cond(i > 0, lambda r: r * r, lambda r: r**3, q),
            lambda q: lax.cond(i > 5, jnp.sin, jnp.cos, q),
            q,
        )

    return mapped(spmd, branches)(x, table, i)


def switches(spmd, x, table, i):
    choices = (jnp.sin, lambda r: r * r, lambda r: jnp.tanh(r) * r)

    def branches(q, table, i):
        def one(q):
            return lax.switch(lax.axis_index("y") + i - 1, choices, q)

        def other(q):
            return lax.switch(i, choices, q * table[0])

        return lax.cond(here(), one, other, q)

    return mapped(spmd, branches)(x, table, i)


@program(XY_ODD, args=args, around=pushed)
def a_switch_in_a_cond_pushed_forward(spmd, x, table, i):
    return switches(spmd, x, table, i)


@program(FOUR, args=args, checks=(True,), around=batched(gradient))
def a_switch_in_a_cond_in_a_batch(spmd, x, table, i):
    return switches(spmd, x, table, i)


@program(FOUR, args=args, checks=(True,), around=pulled)
def indices_in_a_cond(spmd, x, table, i):
    def branches(q, table, i):
        def cut(q):
            return q * lax.dynamic_slice(table, (i,), (2,))

        def pick(q):
            return q * jnp.sin(table[i + lax.axis_index("y")])

        return lax.cond(here(), cut, pick, q)

    return mapped(spmd, branches)(x, table, i)


@program(FOUR, args=args, checks=(True,), around=lambda f: pushed(gradient(f)))
def conds_over_two_axes_twice_derived(spmd, x, table, i):
    def branches(q, table, i):
        def inner(q):
            return lax.cond(here("y"), lambda r: r**3 * table[i], lambda r: jnp.sin(r), q)

        return lax.cond(here(), inner, lambda q: lax.cond(i > 0, jnp.exp, jnp.cos, q), q)

    return mapped(spmd, branches)(x, table, i)


@program(FOUR, args=args, checks=(True,), around=lambda f: pulled(gradient(f)))
def a_scan_in_a_cond_backward_twice(spmd, x, table, i):
    def branches(q, table, i):
        def step(carry, scale):
            carry = lax.cond(scale > i, jnp.sin, lambda c: c * table[1], carry)
            return carry, jnp.sum(carry)

        def loop(q):
            last, seen = lax.scan(step, q, jnp.arange(3))
            return last + jnp.mean(seen)

        return lax.cond(here(), loop, lambda q: q * q, q)

    return mapped(spmd, branches)(x, table, i)


@program(XY_ODD, args=args, checks=(True,), around=linearized)
def a_cond_in_a_scan(spmd, x, table, i):
    def branches(q, table, i):
        def step(carry, scale):
            def one(c):
                return lax.cond(i > scale, jnp.sin, lambda c: c * c, c)

            return lax.cond(lax.axis_index("x") > scale - i, one, jnp.tanh, carry), None

        return lax.scan(step, q, jnp.arange(3))[0]

    return mapped(spmd, branches)(x, table, i)


@program(FOUR, args=args, checks=(True,), around=lambda f: jax.jacfwd(f, argnums=(0, 1)))
def a_while_in_a_cond(spmd, x, table, i):
    def branches(q, table, i):
        def loop(q):
            count = i + lax.axis_index("y")
            start = vary((jnp.int32(0), q), spmd.axes)
            step = lambda s: (s[0] + 1, jnp.sin(s[1]) * table[i])  # noqa: E731
            return lax.while_loop(lambda s: s[0] < count, step, start)[1]

        return lax.cond(here(), loop, lambda q: lax.cond(i > 0, jnp.cos, jnp.sin, q), q)

    return mapped(spmd, branches)(x, table, i)


@program(FOUR, args=args, checks=(True,), around=lambda f: gradient(jax.checkpoint(f)))
def rematerialised_conds(spmd, x, table, i):
    def branches(q, table, i):
        @jax.checkpoint
        def one(q):
            return lax.cond(i > 0, lambda r: r * table[i], jnp.cos, jnp.sin(q))

        return lax.cond(here(), one, lambda q: lax.cond(i > 1, jnp.sin, jnp.cos, q), q)

    return jax.checkpoint(mapped(spmd, branches))(x, table, i)


@program(FOUR, args=args, checks=(True,), around=lambda f: jax.jacrev(f, argnums=(0, 1)))
def rules_of_its_own_in_a_cond(spmd, x, table, i):
    @jax.custom_vjp
    def own(q, scale):
        return jnp.sin(q) * scale

    own.defvjp(
        lambda q, scale: (own(q, scale), (q, scale)),
        lambda saved, ct: (ct * jnp.cos(2 * saved[0]) * saved[1], jnp.sum(ct * saved[0])),
    )

    def branches(q, table, i):
        def one(q):
            return lax.cond(i > 0, lambda r: own(r, table[i]), jnp.cos, q)

        return lax.cond(here(), one, lambda q: lax.cond(i > 1, jnp.sin, jnp.cos, q), q)

    return mapped(spmd, branches)(x, table, i)


def _in_a_scan(f):
    def loss(x, table, i):
        step = lambda c, _: (jnp.tanh(f(c, table, i)), None)  # noqa: E731
        return jnp.sum(lax.scan(step, x, None, length=2)[0] * jnp.cos(jnp.arange(x.size)))

    return jax.grad(loss, argnums=(0, 1))


@program(FOUR, args=args, checks=(True,), around=_in_a_scan)
def conds_in_a_simulated_step_of_a_scan(spmd, x, table, i):
    return switches(spmd, x, table, i)


# --- with the check off: outputs that only seem to be the same everywhere


def false_outputs(spmd, x, table, i):
    def body(x, table, i):
        own = jnp.sin(x) * place() * table[i]
        return own, jnp.sum(own * own), own * own

    first, total, squares = spmd(body, (ALL, P(), P()), (P(), P(), ALL))(x, table, i)
    return jnp.sum(jnp.cos(first)) + total * jnp.sum(squares)


@program(FOUR, args=args, checks=(False,), around=lambda f: jax.grad(f, argnums=(0, 1)))
def outputs_that_only_seem_the_same(spmd, x, table, i):
    return false_outputs(spmd, x, table, i)


@program(XY_ODD, args=args, checks=(False,), around=lambda f: pushed(jax.grad(f, argnums=(0, 1))))
def outputs_that_only_seem_the_same_twice_derived(spmd, x, table, i):
    return false_outputs(spmd, x, table, i)


@program(
    {"x": 4, "y": 2}, args=args, checks=(False,), around=batched(lambda f: jax.grad(f, (0, 1)))
)
def outputs_that_only_seem_the_same_in_a_batch(spmd, x, table, i):
    return false_outputs(spmd, x, table, i)


@program(FOUR, args=args, checks=(False,), around=jax.hessian)
def outputs_that_only_seem_the_same_in_a_hessian(spmd, x, table, i):
    return false_outputs(spmd, x, table, i)


@program(FOUR, args=args, checks=(False,), around=lambda f: jax.jacfwd(f, argnums=(0, 1)))
def outputs_that_only_seem_the_same_handed_to_another(spmd, x, table, i):
    def first(x):
        return jnp.sin(x) * place()

    def second(y, x):
        return lax.cond(here("y"), lambda y: y * y, jnp.cos, y) * x

    y = spmd(first, ALL, P())(x)
    return spmd(second, (P(), ALL), ALL)(jnp.tanh(y), x)
