"""Programs that are declared float64: errors far below a millionth are seen."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax

from tests.support import check

MESH = {"data": [1, 2, 4, 8]}
X = np.random.default_rng(0).normal(size=(64, 33))


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


def split(body):
    def f(x, *, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    return f


def off(by):
    """The mean, times a little more than 1 on more than one device."""

    def body(x):
        factor = 1.0 if lax.axis_size("data") == 1 else 1.0 + by
        return lax.pmean(x.mean(0), "data").at[3].mul(factor)

    return split(body)


@pytest.mark.parametrize("by", [1e-7, 1e-9])
def test_a_small_error_is_seen(by):
    assert not check(off(by), X, mesh=MESH)
    # In float32 it is far below what any program could be asked for.
    assert check(off(by), X.astype(np.float32), mesh=MESH)


def variance(x):
    mean = lax.pmean(x.mean(0), "data")
    return lax.pmean(((x - mean) ** 2).mean(0), "data")


RIGHT = {
    "a mean": lambda x: lax.pmean(x.mean(0), "data"),
    "what cancels": lambda x: lax.psum((x - lax.pmean(x.mean(0), "data")).sum(0), "data"),
    "a variance by squares": lambda x: (
        lax.pmean((x * 1e4) ** 2, "data").mean() - lax.pmean(x * 1e4, "data").mean() ** 2
    ),
    "a variance": variance,
    "a solution": lambda x: jnp.linalg.solve(lax.psum(x.T @ x, "data"), lax.psum(x.sum(0), "data")),
    "a long way": lambda x: lax.fori_loop(
        0, 50, lambda _, c: jnp.sin(3 * c) + 1e-3 * c, lax.pmean(x.mean(0), "data")
    ),
    "a softmax": lambda x: jax.nn.softmax(50 * lax.psum(x.sum(0), "data")),
}


@pytest.mark.parametrize("name", RIGHT)
def test_rounding_is_no_mistake(name):
    verdict = check(split(RIGHT[name]), X, mesh=MESH)
    assert verdict, verdict


def test_numbers_whose_squares_have_no_place_in_float64():
    mean = split(lambda x: lax.pmean(x.mean(0), "data"))
    assert check(mean, X * 1e200, mesh=MESH)
