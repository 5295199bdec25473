"""Programs that compute nothing on some mesh, or return something else there."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.support import check

MESH = {"data": [1, 2, 4]}
X = jnp.arange(8.0)


def mean(x, mesh):
    body = lambda x: lax.pmean(x.mean(), "data")  # noqa: E731
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


WRONG = {
    "the number of devices": lambda x, *, mesh: mesh.size,
    "the argument": lambda x, *, mesh: x if mesh.size > 1 else x * 2.0,
    "None": lambda x, *, mesh: None if mesh.size > 1 else x.sum(),
    "None, of a mean": lambda x, *, mesh: None if mesh.size > 1 else mean(x, mesh),
    "a dict": lambda x, *, mesh: {"mean": mean(x, mesh)} if mesh.size > 1 else mean(x, mesh),
    "two": lambda x, *, mesh: (mean(x, mesh), x) if mesh.size == 1 else (mean(x, mesh),),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_wrong_where_it_is_something_else(name):
    verdict = check(WRONG[name], X, mesh=MESH)
    assert verdict.wrong_on == ("{data: 2}", "{data: 4}")
    assert "result" in str(verdict)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
def test_a_number_of_the_mesh_is_told_as_one(beside):
    f = lambda x, *, mesh: (mean(x, mesh), mesh.size) if beside else mesh.size  # noqa: E731
    finding = check(f, X, mesh=MESH).findings[0]
    assert "is a number that the program takes from the mesh" in finding.message
    assert "4 instead of 1" in finding.message
    assert not finding.where.file


def test_what_is_returned_as_it_is_is_right():
    assert check(lambda x, *, mesh: x, X, mesh=MESH)


def test_nothing_beside_one_is_nothing(recwarn):
    """A mean of no rows has one, and what it is taken off has none."""

    def f(x, *, mesh):
        body = lambda x: x - x.mean(0, keepdims=True)  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    verdict = check(f, jnp.zeros((0, 8, 4)), mesh=MESH)
    assert [one.code for one in verdict.findings] == ["SW501"]
    assert not [one for one in recwarn if "could not follow" in str(one.message)]
