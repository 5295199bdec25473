"""Programs of which the compiler partitions a part: verdicts and proofs say which was checked."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding

import shardwise as sw
from tests.support import check

X = np.arange(32, dtype=np.float32).reshape(8, 4)
W = np.arange(16, dtype=np.float32).reshape(4, 4)
MESH = sw.mesh(data=4)
EXPLICIT = AbstractMesh((4,), ("data",), axis_types=(AxisType.Explicit,))
SHARDED = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(MESH, P("data")))


def summed(x):
    """Sum the rows in a `shard_map`."""
    rows = lambda part: lax.psum(part.sum(0), "data")  # noqa: E731
    return jax.shard_map(rows, in_specs=P("data"), out_specs=P())(x)


def loss(x, w):
    return (summed(x) @ w).sum()


def multiplied(x, w):
    return summed(x @ w).sum()


def constrained(x, w):
    return summed(lax.with_sharding_constraint(x @ w, P("data"))).sum()


def constrained_in_a_loop(x, w):
    step = lambda y, _: (lax.with_sharding_constraint(y @ w, P("data")), None)  # noqa: E731
    return summed(lax.scan(step, x, length=2)[0])


def looped(x, w):
    return summed(lax.fori_loop(0, 2, lambda _, y: y @ w, x))


def looped_around(x, w):
    return lax.fori_loop(0, 2, lambda _, total: total + summed(x), w.sum(0))


def gathered(x, w):
    return jax.sharding.reshard(x, P()) @ w + summed(x)


jitted = jax.jit(multiplied, in_shardings=(NamedSharding(MESH, P("data")), None))
jitted_loss = jax.jit(loss, in_shardings=(NamedSharding(MESH, P("data")), None))

MIXED = {
    "constraint": (constrained, X, MESH),
    "constraint in a loop": (constrained_in_a_loop, X, MESH),
    "derivative": (jax.grad(constrained), X, MESH),
    "argument": (multiplied, SHARDED, MESH),
    "argument in a loop": (looped, SHARDED, MESH),
    "jit": (jitted, X, MESH),
    "Explicit axes": (multiplied, X, EXPLICIT),
    "reshard": (gathered, X, EXPLICIT),
}
CHECKED_WHOLE = {
    "a plain loss": (loss, X, MESH),
    "a plain product": (multiplied, X, MESH),
    "derivative": (jax.grad(loss), X, MESH),
    "an argument of the shard_map": (loss, SHARDED, MESH),
    "an argument of a shard_map in a loop": (looped_around, SHARDED, MESH),
    "jit": (jitted_loss, X, MESH),
    "Explicit axes": (loss, X, EXPLICIT),
    "one device": (constrained, X, sw.mesh(data=1)),
    "no shard_map": (lambda x, w: lax.with_sharding_constraint(x @ w, P("data")), X, MESH),
}


def answer(verb, f, x, mesh):
    in_specs = (P("data"), P()) if mesh is EXPLICIT else None
    return getattr(sw, verb)(f, x, W, mesh=mesh, in_specs=in_specs)


@pytest.mark.parametrize("verb", ["check", "prove"])
@pytest.mark.parametrize("name", MIXED)
def test_the_part_is_named(verb, name):
    said = answer(verb, *MIXED[name])
    line = summed.__code__.co_firstlineno + 3
    assert said.ok, said
    assert said.checked == (
        f"Checked: the shard_map at test_mixed.py:{line}. The rest is partitioned by the compiler, "
        "which keeps its meaning: `shardwise explain` shows what it sends."
    )
    assert str(said).splitlines()[1] == said.checked
    assert said.checked in said._repr_html_()
    assert json.loads(json.dumps(said.to_dict()))["checked"] == said.checked


@pytest.mark.parametrize("verb", ["check", "prove"])
@pytest.mark.parametrize("name", CHECKED_WHOLE)
def test_a_program_that_is_checked_whole(verb, name):
    said = answer(verb, *CHECKED_WHOLE[name])
    assert said.ok, said
    assert said.checked == ""
    assert "Checked:" not in str(said)


def test_a_wrong_program_says_so_too():
    def wrong(x, w):
        y = lax.with_sharding_constraint(jnp.tanh(x @ w), P("data"))
        mean = lambda part: lax.pmean(part.sum(0), "data")  # noqa: E731
        return jax.shard_map(mean, in_specs=P("data"), out_specs=P())(y)

    verdict = check(wrong, X, W, mesh=MESH)
    assert not verdict
    assert "partitioned by the compiler" in str(verdict).splitlines()[1]


def test_an_axis_inside_that_is_left_to_the_compiler():
    def partly(x, w):
        def part(x, w):
            return lax.psum(lax.with_sharding_constraint(x @ w, P(None, "model")).sum(0), "data")

        specs = (P("data"), P())
        return jax.shard_map(part, axis_names={"data"}, in_specs=specs, out_specs=P())(x, w)

    assert (
        "partitioned by the compiler" in check(partly, X, W, mesh=sw.mesh(data=2, model=2)).checked
    )


def test_several_lines_are_named():
    def many(x, w):
        for _ in range(2):
            x = lax.with_sharding_constraint(x @ w, P("data"))
        for f in (jnp.sin, jnp.cos):
            x = jax.shard_map(f, in_specs=P("data"), out_specs=P("data"))(x)
            x = jax.shard_map(f, in_specs=P("data"), out_specs=P("data"))(x)
            x = jax.shard_map(f, in_specs=P("data"), out_specs=P("data"))(x)
            x = jax.shard_map(f, in_specs=P("data"), out_specs=P("data"))(x)
        return summed(x)

    first = many.__code__.co_firstlineno + 4
    places = ", ".join(f"test_mixed.py:{first + k}" for k in range(3))
    assert (
        f"the shard_maps at {places} and 2 more. The rest"
        in sw.prove(many, X, W, mesh=MESH).checked
    )
