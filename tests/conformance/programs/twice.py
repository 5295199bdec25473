"""Second derivatives of the simulated function where a loop holds a derivative rule of its own.

JAX drops such a rule where it takes a loop apart into what runs now and what is linear. Whoever
differentiates the parts once more gets another number than whoever differentiates the whole.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from ...support import normal, vary
from ..table import program
from . import X3, XY

SLOPES = jnp.array([2.0, -1.5])


@jax.custom_jvp
def bent(x):
    return jnp.exp(0.1 * x)


@bent.defjvp
def _(primals, tangents):
    # Neither the true slope nor one that can be written as a literal.
    return bent(*primals), SLOPES * tangents[0] * bent(*primals)


def looped(spmd, x, w):
    def body(x, w):
        def step(carry, scale):
            carry = bent(jnp.sin(carry) * scale * vary(w, spmd.axes))
            return carry, carry.sum()

        last, seen = lax.scan(step, vary(x, spmd.axes), jnp.arange(1.0, 3.0))
        counted = lax.fori_loop(0, 2, lambda i, c: bent(c) + i, last)
        return lax.psum(counted.sum() + seen.sum(), spmd.axes)

    return spmd(body, (P("x"), P()), P())(x, w)


def args(sizes):
    return normal(2 * sizes["x"], 2), normal(2)


def pushed(f):
    """Results and tangents in one direction, as a function of both arguments."""
    return lambda x, w: jax.jvp(f, (x, w), (jnp.cos(x), jnp.sin(3 * w)))


def slope(f):
    return lambda x, w: pushed(f)(x, w)[1]


def gradient(f):
    return jax.grad(f, argnums=(0, 1))


def jacobian(f):
    return jax.jacfwd(f, argnums=(0, 1))


@program(X3, XY, args=args, around=lambda f: pushed(pushed(f)))
def forward_of_forward(spmd, x, w):
    return looped(spmd, x, w)


@program(X3, args=args, around=lambda f: jacobian(jacobian(f)))
def jacobian_of_jacobian(spmd, x, w):
    return looped(spmd, x, w)


@program(X3, args=args, around=lambda f: pushed(gradient(f)))
def forward_of_reverse(spmd, x, w):
    return looped(spmd, x, w)


@program(X3, args=args, around=lambda f: gradient(slope(f)))
def reverse_of_forward(spmd, x, w):
    return looped(spmd, x, w)


@program(X3, args=args, around=lambda f: gradient(slope(slope(f))))
def reverse_of_second_forward(spmd, x, w):
    return looped(spmd, x, w)


# A checkpoint takes apart a jaxpr, not a call: it has a rule of its own.
@program(X3, args=args, around=lambda f: gradient(jax.checkpoint(slope(f))))
def rematerialised_forward(spmd, x, w):
    return looped(spmd, x, w)


SAVING = jax.checkpoint_policies.everything_saveable


@program(X3, args=args, around=lambda f: gradient(jax.checkpoint(f, policy=SAVING)))
def checkpoint_that_saves(spmd, x, w):
    return looped(spmd, x, w)


def _transposed(f):
    """The pullback, made of a batch of forward derivatives."""

    def run(x, w):
        def many(directions):
            value, out = jax.vmap(lambda t: jax.jvp(lambda x: f(x, w), (x,), (t,)))(directions)
            return jnp.sin(value) * out

        directions = jnp.stack([x, jnp.cos(x)])
        return jax.linear_transpose(jax.jit(many), directions)(jnp.array([1.0, -2.0]))

    return run


@program(X3, args=args, around=_transposed)
def transposed_batch_of_forwards(spmd, x, w):
    return looped(spmd, x, w)
