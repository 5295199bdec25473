"""One value on two lines: what is said of a result is said of the line it comes from."""

import jax
import jax.numpy as jnp
import pytest
from jax import P, lax

import shardwise as sw
from tests.support import normal

MESH = {"data": [1, 4]}


def summed(x):
    a = lax.psum(x.mean(), "data")  # a
    b = lax.psum(x.mean(), "data")  # b
    return {"a": a, "b": b}


def scaled(x):
    b = lax.pmean(x.mean(), "data") * lax.axis_size("data")  # b
    a = lax.psum(x.mean(), "data")  # a
    return {"a": a, "b": b}


def right_beside(x):
    mean = lax.pmean(x.mean(), "data")
    b = lax.pmean(x.mean(), "data") * lax.axis_size("data")  # b
    return {"mean": lax.pmean(x.mean(), "data") + 0 * mean, "b": b}


def gradients(x):
    def loss(w):
        return jnp.mean((x * w) ** 2)

    a = lax.psum(jax.grad(loss)(2.0), "data")  # a
    b = lax.psum(jax.grad(loss)(2.0), "data")  # b
    return {"b": b, "a": a}


def no_factor(x):
    a = jnp.sort(lax.pmean(x, "data"))[0]  # a
    b = jnp.sort(lax.pmean(x, "data"))[0]  # b
    return {"a": a, "b": b}


@pytest.mark.parametrize("find", [sw.check, sw.prove])
@pytest.mark.parametrize("body", [summed, scaled, right_beside, gradients, no_factor])
def test_each_result_has_its_own_line(body, find):
    def program(x, *, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)

    found = find(program, normal(64) + 3, mesh=MESH).findings
    wrong = {f.leaf for f in found}
    assert wrong == ({"result['b']"} if body is right_beside else {"result['a']", "result['b']"})
    with open(__file__) as file:
        lines = file.read().splitlines()
    for finding in found:
        assert lines[finding.where.line - 1].endswith(f"# {finding.leaf[-3]}")
