"""False proofs in disguise: questions about NaN, positions in floats, products beside zeros.

Every wrong program here differs from its reference, or on four devices from one, on the arguments
given; none may be proved.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from .test_classes import COUNT, INFINITE, LONG, SOME_NAN, D, Program, R

WIDE = np.arange(2048, dtype=np.float32)
SIGNED = np.where(COUNT == 9, np.float32(-np.inf), INFINITE)
ROWS = np.arange(2400, dtype=np.float32).reshape(1200, 2)
INDEX = np.array([299, 300, 598, 599, 899, 900, 257, 601], np.int32)


def device():
    return lax.axis_index("data")


def count():
    return lax.axis_size("data")


def own_rows(start):
    return lambda x: lax.dynamic_slice(x, (start(),), (x.shape[0] // count(),))


def numbered(dtype):
    """The numbers of a device's elements, computed in `dtype`."""

    def positions(x):
        first = device().astype(dtype) * x.shape[0]
        return first + jnp.arange(x.shape[0], dtype=dtype)

    return positions


def masked_in(dtype):
    def body(table, index):
        size = table.shape[0]
        first, number = (device() * size).astype(dtype), index.astype(dtype)
        live = (number >= first) & (number < ((device() + 1) * size).astype(dtype))
        rows = table[jnp.clip(index - device() * size, 0, size - 1)]
        return lax.psum(jnp.where(live[:, None], rows, 0.0), "data")

    return body


def largest(x):
    return lax.pmax(jnp.abs(x).max(), "data")


WRONG = {
    # of infinities there is no difference
    "at most": Program(lambda x, y: x - y <= 0, (D, D), D, (SIGNED, SIGNED), lambda x, y: x <= y),
    "equal": Program(lambda x, y: x - y == 0, (D, D), D, (SIGNED, SIGNED), lambda x, y: x == y),
    "infinite": Program(lambda x: x - jnp.inf == 0, (D,), D, (SIGNED,), lambda x: x == jnp.inf),
    "moved": Program(
        lambda x, y, z: x + z >= y,
        *((D, D, D), D, (SIGNED, SIGNED, -SIGNED), lambda x, y, z: x >= y - z),
    ),
    "not less": Program(lambda x, y: ~(x < y), (D, D), D, (SOME_NAN, COUNT), lambda x, y: x >= y),
    # what cancels, or stands beside a zero, where arrays are taken apart
    "pieces that cancel": Program(
        lambda x, y, z: jnp.concatenate([x, y]) - jnp.concatenate([x, z]),
        *((R, R, R), R, (SOME_NAN, COUNT, 2 * COUNT)),
        lambda x, y, z: jnp.concatenate([jnp.zeros(16), y - z]),
    ),
    "pieces beside zeros": Program(
        lambda x, y: jnp.concatenate([jnp.zeros(8), x[:8]]) * y,
        *((R, R), R, (COUNT, SOME_NAN)),
        lambda x, y: jnp.concatenate([jnp.zeros(8), x[:8] * y[8:]]),
    ),
    "padding in a product": Program(
        lambda x, w: jnp.pad(x, [(0, 0), (4, 0)]) @ w,
        *((D, R), D, (np.ones((8, 4), np.float32), SOME_NAN.reshape(8, 2))),
        lambda x, w: x @ w[4:],
    ),
    # exponentials of data do not cancel
    "a ratio of exponentials": Program(
        lambda x: jnp.exp(x) / jnp.exp(x), (D,), D, (SOME_NAN,), jnp.ones_like
    ),
    "compared": Program(
        lambda x: jnp.exp(x) / jnp.exp(x) == 1,
        *((D,), D, (SOME_NAN,), lambda x: jnp.ones_like(x, dtype=bool)),
    ),
    # a maximum over devices skips NaN
    "is the largest NaN": Program(
        lambda x: jnp.where(jnp.isnan(largest(x)), 1.0, x), (D,), D, (SOME_NAN,)
    ),
    "is the largest finite": Program(
        lambda x: jnp.where(jnp.isfinite(largest(x)), x, 1.0), (D,), D, (SOME_NAN,)
    ),
    "is the largest large": Program(
        lambda x: jnp.where(largest(x) > 3, x, 1.0), (D,), D, (SOME_NAN,)
    ),
    # positions in floating-point numbers, and on the way to few bits
    "a slice at an int8": Program(
        own_rows(lambda: (device().astype(jnp.float32) * 512).astype(jnp.int8).astype(jnp.int32)),
        *((R,), D, (WIDE,)),
    ),
    "a slice at a uint8": Program(
        own_rows(lambda: (device().astype(jnp.float32) * 512).astype(jnp.uint8).astype(jnp.int32)),
        *((R,), D, (WIDE,)),
    ),
    "bfloat16 positions": Program(
        lambda x: lax.all_gather(x, "data", tiled=True)[numbered(jnp.bfloat16)(x).astype(int)],
        *((D,), D, (WIDE,)),
    ),
    "a bfloat16 mask": Program(
        lambda x: jnp.where(numbered(jnp.bfloat16)(x) < 1501, x, 0.0), (D,), D, (WIDE,)
    ),
    "a bfloat16 mask of a lookup": Program(
        masked_in(jnp.bfloat16),
        *((D, R), R, (ROWS, INDEX), lambda table, index: table[index]),
    ),
    # integers that wrap around as they become something else
    "uint32 sums": Program(
        lambda x: lax.psum((x * np.uint32(2654435761)).sum().astype(jnp.float32), "data"),
        *((D,), R, (np.arange(3, 19, dtype=np.uint32),)),
    ),
    "int32 positions": Program(
        lambda x: x + (rows(x) * 1000003).astype(jnp.float32),
        *((D,), D, (np.zeros(16384, np.float32),)),
        lambda x: x + jnp.arange(16384).astype(jnp.float32) * 1000003.0,
    ),
    "a result in uint8": Program(
        lambda x: lax.psum(x.sum(dtype=jnp.uint8), "data"),
        *((D,), R, (np.full(16, 100, np.uint8),), lambda x: x.astype(jnp.int32).sum()),
    ),
    "an unstable sort": Program(
        lambda k, v: lax.sort((k, v), num_keys=1, is_stable=False)[1],
        *((R, R), R, (0 * LONG, np.random.default_rng(0).random(1024, np.float32))),
        lambda k, v: lax.sort((k, v), num_keys=1, is_stable=True)[1],
    ),
}


def rows(x):
    return jnp.arange(x.shape[0], dtype=jnp.int32) + device() * x.shape[0]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_is_not_proved(name):
    program = WRONG[name]
    got, want = program.on(4), program.wanted()
    close = np.isclose(got.astype(float), want.astype(float), rtol=1e-3, equal_nan=True)
    assert not close.all(), "the arguments do not show that this program is wrong"
    assert program.proved() != "proved"


RIGHT = {
    "a mask": Program(
        masked_in(jnp.int32),
        *((D, R), R, (ROWS, INDEX)),
        lambda t, i: jnp.where(((i >= 0) & (i < 1200))[:, None], t[jnp.clip(i, 0, 1199)], 0.0),
    ),
    "float32 positions": Program(lambda x: x * (0.1 * numbered(jnp.float32)(x)), (D,), D, (WIDE,)),
    "bfloat16 of positions": Program(
        lambda x: jnp.where(rows(x).astype(jnp.bfloat16) < 1501, x, 0.0), (D,), D, (WIDE,)
    ),
    "few bfloat16 positions": Program(
        lambda x: x * numbered(jnp.bfloat16)(x).astype(jnp.float32), (D,), D, (WIDE[:64],)
    ),
    "a comparison the other way": Program(
        lambda x, y: 2 * x < 2 * y, (D, D), D, (COUNT, SOME_NAN), lambda x, y: y > x
    ),
    "is the sum NaN": Program(
        lambda x: jnp.where(jnp.isnan(lax.psum(x.sum(), "data")), 1.0, x), (D,), D, (SOME_NAN,)
    ),
    "a softmax": Program(
        lambda x: jnp.exp(x - largest(x)) / lax.psum(jnp.exp(x - largest(x)).sum(), "data"),
        *((D,), D, (COUNT,), lambda x: jnp.exp(x) / jnp.exp(x).sum()),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_is_proved(name):
    program = RIGHT[name]
    np.testing.assert_allclose(program.on(4), program.wanted(), rtol=1e-4, equal_nan=True)
    assert program.proved() == "proved"
