"""False proofs that a second reading of the rules found.

Every wrong program here differs from its reference, or on four devices from one, on the arguments
given; none may be proved.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from .test_classes import COUNT, SOME_NAN, D, Program, R

GRID = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
GRID_NAN = np.where(GRID > 1.5, np.float32(np.nan), GRID)
SIGNED = np.where(COUNT % 8 < 4, COUNT + 1, -COUNT)
"""Devices' sums of them have both signs."""
MANY = np.ones(1024, np.float32)


def counter(dtype, last=False):
    """The iterations of a loop, counted in a dtype, times its rows."""

    def count(c, row):
        return c + jnp.ones((), dtype), row * c.astype(row.dtype)

    def counted(x):
        start = jnp.zeros((), dtype)
        end, rows = lax.scan(count, start, x)
        return x * end.astype(x.dtype) if last else rows

    return counted


def by_unstack(axis):
    def body(x):
        first, second = (
            jnp.unstack(x[rows], axis=a) for rows, a in zip(BLOCKS, (0, axis), strict=True)
        )
        return jnp.sin(first[0]) + jnp.sin(second[0])

    return body


BLOCKS = slice(0, 4), slice(4, 8)


def largest_written_out(x):
    """The largest of all rows as four devices find it."""
    return functools.reduce(jnp.maximum, [part.max() for part in jnp.split(x, 4)])


def without_nan(largest):
    return lambda x: jnp.where(jnp.isnan(largest(x)), 1.0, x)


WRONG = {
    # each device's share times zero is NaN where the share is
    "zeros times a share": Program(
        lambda x: x + jnp.zeros((1, 4)) @ x.sum(0), (D,), D, (GRID_NAN,)
    ),
    "zeros convolved with a share": Program(
        lambda x: x + lax.conv(jnp.zeros((1, 1, 4)), x.sum(0)[None, None], (1,), "VALID")[0],
        *((D,), D, (GRID_NAN,)),
    ),
    # infinities do not add up as numbers do
    "a share divided by 0": Program(lambda x: x + x.sum() / 0.0, (D,), D, (SIGNED,)),
    "a share times infinity": Program(
        lambda x: lax.psum(x.sum() * jnp.inf, "data"), (D,), R, (SIGNED,)
    ),
    # a divisor may be 0 without being data
    "0 by positions": Program(
        lambda x: x + jnp.zeros(x.shape) / jnp.arange(4.0), (D,), D, (GRID,), lambda x: x
    ),
    "0 by booleans": Program(
        lambda x: x + jnp.zeros(x.shape) / (x > 0), (D,), D, (GRID,), lambda x: x
    ),
    "0 by 0": Program(
        lambda x: x + jnp.zeros(x.shape) / jnp.zeros(x.shape), (D,), D, (GRID,), lambda x: x
    ),
    "0 times the largest of nothing": Program(
        lambda x: x[:, 0] + 0.0 * lax.reduce_max(x[:, :0], (1,)),
        (D,),
        D,
        (GRID,),
        lambda x: x[:, 0],
    ),
    # exponentials cancel only in what is computed, not in a question about it
    "a ratio of exponentials is compared": Program(
        lambda x: jnp.exp(jax.nn.relu(x)) / jnp.exp(jax.nn.relu(x)) == 1,
        *((D,), D, (SOME_NAN,), lambda x: jnp.ones_like(x, dtype=bool)),
    ),
    "is the largest NaN, device by device": Program(
        without_nan(lambda x: lax.pmax(x.max(), "data")),
        *((D,), D, (SOME_NAN,), without_nan(largest_written_out)),
    ),
    # floating-point numbers are counted with only as far as they are integers
    "a bfloat16 counter": Program(
        counter(jnp.bfloat16), (R,), R, (MANY,), lambda x: x * jnp.arange(1024.0)
    ),
    "the end of a bfloat16 counter": Program(
        counter(jnp.bfloat16, last=True), (R,), R, (MANY,), lambda x: x * 1024.0
    ),
    "a float16 counter": Program(
        counter(jnp.float16),
        *((R,), R, (np.ones(4096, np.float32),), lambda x: x * jnp.arange(4096.0)),
    ),
    # iterations that differ in more than the place of their slices
    "elements of another dimension": Program(by_unstack(1), (R,), R, (GRID[:8],), by_unstack(0)),
    # a draw without a key
    "numbers from a generator with a state": Program(
        lambda x: x + lax.rng_uniform(0.0, 1.0, (1,)), (D,), D, (COUNT,)
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_not_proved(name):
    program = WRONG[name]
    got, want = program.on(4), program.wanted()
    close = np.isclose(got.astype(float), want.astype(float), rtol=1e-3, equal_nan=True)
    assert not close.all(), "the arguments do not show that this program is wrong"
    assert program.proved() != "proved"


RIGHT = {
    "0 by a number": Program(lambda x: x + jnp.zeros(x.shape) / 4.0, (D,), D, (GRID,), lambda x: x),
    "a share divided by a number": Program(
        lambda x: lax.psum(x.sum() / 16, "data"), (D,), R, (COUNT,)
    ),
    "zeros times whole data": Program(
        lambda x: x + jnp.zeros((1, 4)) @ lax.psum(x.sum(0), "data"), (D,), D, (GRID_NAN,)
    ),
    "a short bfloat16 counter": Program(
        counter(jnp.bfloat16), (R,), R, (MANY[:64],), lambda x: x * jnp.arange(64.0)
    ),
    "elements of one dimension": Program(by_unstack(0), (R,), R, (GRID[:8],)),
    "real and imaginary sums": Program(
        lambda x: jnp.abs(lax.psum(lax.complex(x.sum(), 2 * x.sum()), "data")), (D,), R, (COUNT,)
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_proved(name):
    program = RIGHT[name]
    np.testing.assert_allclose(program.on(4), program.wanted(), rtol=1e-4, equal_nan=True)
    assert program.proved() == "proved"
