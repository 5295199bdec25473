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
from jax.sharding import PartitionSpec as P

from shardwise._meaning.rules import frozen

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


def batched(x, y):
    """One product of a matrix and a vector for each row of y, which is dimension 1 of x."""
    return lax.dot_general(x, y, (((2,), (1,)), ((1,), (0,))))


def gamma(x, dtype):
    keys = jax.random.split(jax.random.key(0), len(x))
    draw = jax.vmap(functools.partial(jax.random.gamma, dtype=dtype))
    return draw(keys, x.astype(dtype)).astype(x.dtype)


MASK = np.where(np.eye(4).repeat(2, 1), np.float32(-np.inf), 0).astype(np.float32)
SCORES, VALUES = GRID[:8].T, GRID[8:]


def softmax(s):
    weights = jnp.exp(s - s.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def own_columns(mask, s):
    first = lax.axis_index("data") * s.shape[1]
    return lax.dynamic_slice_in_dim(jnp.asarray(mask), first, s.shape[1], axis=1)


def by_columns(s, v):
    """A softmax of which each device has columns, rescaled from its own largest score."""
    own = s.max(-1, keepdims=True)
    largest = lax.pmax(own, "data")
    weights = jnp.exp(s - own) * jnp.exp(own - largest)
    return lax.psum(weights @ v, "data") / lax.psum(weights.sum(-1, keepdims=True), "data")


CUBE = np.random.default_rng(1).normal(size=(4, 4, 4)).astype(np.float32)

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
    # a factor in front of a contraction of batches
    "a factor that is transposed": Program(
        lambda w, x, y: batched(w[:, :, None] * x, y),
        *((R, R, R), R, (GRID[:4], CUBE, GRID[4:8]), lambda w, x, y: w * batched(x, y)),
    ),
    "summands of another size": Program(
        lambda x, y: jnp.concatenate([jnp.sin(x[:2]), jnp.sin(x[2:]), y]).sum(),
        *((R, R), R, (COUNT[:4], COUNT[5:6])),
        lambda x, y: (jnp.sin(x[:2]) + jnp.sin(x[2:]) + y).sum(),
    ),
    # a mask of minus infinity in a constant, and for one device there is nothing else
    "the largest of what is masked": Program(
        lambda s, v: by_columns(s + own_columns(MASK, s), v),
        *((P(None, "data"), D), R, (SCORES, VALUES), lambda s, v: softmax(s + MASK) @ v),
    ),
    "the logarithm of a mask": Program(
        lambda s, v: by_columns(s + jnp.log(own_columns(np.exp(MASK), s)), v),
        *((P(None, "data"), D), R, (SCORES, VALUES)),
        lambda s, v: softmax(s + jnp.log(np.exp(MASK))) @ v,
    ),
    # the dtype decides what is drawn
    "gamma of another dtype": Program(
        lambda x: gamma(x, jnp.bfloat16), (R,), R, (COUNT + 1,), lambda x: gamma(x, jnp.float32)
    ),
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


def test_parameters_that_are_arrays_are_compared_by_every_element():
    one, other = np.arange(4000), np.arange(4000)
    other[2000] = 0
    assert str(one) == str(other)
    assert frozen({"x": one}) != frozen({"x": other})
    assert frozen({"x": one}) == frozen({"x": one.copy()})


UNKNOWN = {
    "summands of three sizes": (
        lambda x: jnp.concatenate([jnp.sin(x[:2]), jnp.sin(x[2:4]), x[:3]]).sum(),
        lambda x: jnp.sin(x).sum(),
    ),
    "other numbers of pieces": (
        lambda x: jnp.concatenate([x[2:], -x[4:5], x[:1]]),
        lambda x: jnp.concatenate([x[2:], -x[4:6]]),
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_programs_that_cannot_be_matched_are_unknown(name):
    body, reference = UNKNOWN[name]
    assert Program(body, (R,), R, (COUNT,), reference).proved() == "unknown"


RIGHT = {
    "0 by a number": Program(lambda x: x + jnp.zeros(x.shape) / 4.0, (D,), D, (GRID,), lambda x: x),
    "a share divided by a number": Program(
        lambda x: lax.psum(x.sum() / 16, "data"), (D,), R, (COUNT,)
    ),
    "a softmax by columns": Program(
        by_columns, (P(None, "data"), D), R, (SCORES, VALUES), lambda s, v: softmax(s) @ v
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
