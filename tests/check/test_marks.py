"""Shapes as arguments: labels that do not count are among the values that are drawn."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

SHAPES = (
    jax.ShapeDtypeStruct((8, 5), jnp.float32),
    jax.ShapeDtypeStruct((32, 8), jnp.float32),
    jax.ShapeDtypeStruct((32,), jnp.int32),
)

COUNTING = {
    "ignore index": lambda y: y != -100,
    "none below zero": lambda y: y >= 0,
    "zero is below": lambda y: jnp.less_equal(0, y),
    "above minus one": lambda y: y > -1,
    "padding": lambda y: y != 0,
    "of segmentation": lambda y: y != 255,
    "as floats": lambda y: y.astype(jnp.float32) != -1.0,
}


def loss(counts, mean):
    def f(w, x, y, *, mesh):
        def body(w, x, y):
            log_p = jax.nn.log_softmax(x @ w)
            which = jnp.where(counts(y), y, 0)
            losses = -jnp.take_along_axis(log_p, which[:, None], 1)[:, 0]
            return mean(losses, counts(y))

        specs = (P(), P("data"), P("data"))
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(w, x, y)

    return f


def of_all(losses, counted):
    total = lax.psum(jnp.where(counted, losses, 0).sum(), "data")
    return total / lax.psum(counted.sum(), "data")


def of_means(losses, counted):
    return lax.pmean(jnp.where(counted, losses, 0).sum() / counted.sum(), "data")


@pytest.mark.parametrize("counts", COUNTING.values(), ids=COUNTING)
def test_labels_that_do_not_count_are_drawn(counts):
    mesh = {"data": [1, 2, 4]}
    assert sw.check(loss(counts, of_all), *SHAPES, mesh=mesh)
    assert not sw.check(loss(counts, of_means), *SHAPES, mesh=mesh)


def test_an_index_that_may_count_from_the_end_is_not_marked():
    seen = []

    def f(x, at, *, mesh):
        def body(x, at):
            jax.debug.callback(lambda at: seen.extend(at.tolist()), at)
            return lax.psum(x[at].sum(), "data")

        return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(x, at)

    shapes = jax.ShapeDtypeStruct((6,), jnp.float32), jax.ShapeDtypeStruct((64,), jnp.int32)
    assert sw.check(f, *shapes, mesh={"data": [1, 2]})
    assert seen
    assert set(seen) <= set(range(6))


def test_marks_that_make_no_number_are_not_drawn():
    """Where a program cannot take what it compares with, the rest is drawn as before."""

    def f(y, *, mesh):
        def body(y):
            return lax.psum(jnp.where(y == -100, jnp.nan, y).sum(), "data")

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(y)

    verdict = sw.check(f, jax.ShapeDtypeStruct((64,), jnp.int32), mesh={"data": [1, 2]})
    assert verdict
    assert "NaN" not in str(verdict)


def test_a_count_of_steps_has_no_marks():
    def f(x, step, *, mesh):
        def body(x, step):
            return lax.pmean(x.mean(), "data") / jnp.where(step == -1, 0.0, 1.0 + step)

        return jax.shard_map(body, mesh=mesh, in_specs=(P("data"), P()), out_specs=P())(x, step)

    shapes = jax.ShapeDtypeStruct((8,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    for seed in range(8):
        verdict = sw.check(f, *shapes, mesh={"data": [1, 2]}, seed=seed)
        assert verdict
        assert "SW" not in str(verdict)
