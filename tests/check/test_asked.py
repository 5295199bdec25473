"""Shapes instead of data: the values drawn answer what the program asks of its floats."""

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax

import shardwise as sw

SHAPE = jax.ShapeDtypeStruct((16,), "float32")

TESTS = {
    "isinf": jnp.isinf,
    "-inf": lambda x: x == -jnp.inf,
    "below inf": lambda x: ~(jnp.abs(x) < jnp.inf),
    "not finite": lambda x: ~jnp.isfinite(x),
    "zero": lambda x: x == 0,
    "sign": lambda x: jnp.sign(x) == 0,
}
"""Questions about each number, true of few."""


def on_shards(body):
    def program(x, *, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P())(x)

    return program


def checked(body, reference=None):
    return sw.check(on_shards(body), SHAPE, mesh={"d": [1, 2, 4]}, reference=reference)


@pytest.mark.parametrize("asked", TESTS.values(), ids=[*TESTS])
def test_a_question_about_any_number(asked):
    def wrong(x):
        return lax.psum(jnp.where(asked(x).any(), 0, x.sum()), "d")

    def right(x):
        anywhere = lax.pmax(asked(x).any().astype(int), "d") > 0
        return lax.psum(jnp.where(anywhere, 0, x.sum()), "d")

    def whole(x):
        return jnp.where(asked(x).any(), 0, x.sum())

    assert not checked(wrong).ok
    for reference in (None, whole):
        verdict = checked(right, reference)
        assert verdict.ok, verdict
        assert not verdict.limited, verdict


def test_a_question_about_a_sum():
    def wrong(x):
        return lax.psum(jnp.where(jnp.isinf(x.sum()), 0, x.sum()), "d")

    def right(x):
        total = lax.psum(x.sum(), "d")
        return jnp.where(jnp.isinf(total), 0, total)

    assert not checked(wrong).ok
    assert checked(right).ok


@pytest.mark.parametrize("number", [0.5, 3.0])
def test_an_exact_number_is_a_tie(number):
    """Whether a float is exactly 0.5 depends on rounding; the verdict says so."""

    def wrong(x):
        return lax.psum(jnp.where((x == number).any(), 0, x.sum()), "d")

    assert {finding.code for finding in checked(wrong).findings} & {"SW506", "SW109"}


def largest(x, last):
    """Return the position of the largest number: the first one, or the last device's."""
    position = x.argmax() + lax.axis_index("d") * len(x)
    is_largest = x.max() == lax.pmax(x.max(), "d")
    if last:
        return lax.pmax(jnp.where(is_largest, position, -1), "d")
    return lax.pmin(jnp.where(is_largest, position, 1 << 20), "d")


@pytest.mark.parametrize("reference", [None, jnp.argmax], ids=["itself", "argmax"])
def test_ties_are_reported(reference):
    """Equal scores are drawn: a program that picks another one is told so, and is not wrong."""
    other = checked(lambda x: largest(x, last=True), reference)
    assert other.ok
    assert [finding.code for finding in other.findings] == ["SW506"]
    same = checked(lambda x: largest(x, last=False), reference)
    assert same.ok
    assert not same.findings
