"""`reference=` for programs that update NNX objects: paired by place, not by name."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.support import check

from ..optional import needed

nnx = needed("flax.nnx", "that NNX objects are compared")

MESH = {"data": [1, 2]}
X = jnp.arange(1.0, 17.0)


def new(seed=0):
    return nnx.Linear(2, 2, rngs=nnx.Rngs(seed))


def mean(x, mesh):
    body = lambda x: lax.pmean(x.mean(), "data")  # noqa: E731
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def learn(student, teacher, x, *, mesh):
    student.bias[...] = student.bias[...] + mean(x, mesh)
    teacher.bias[...] = 0.9 * teacher.bias[...] + 0.1 * student.bias[...]


def swapped(teacher, student, x):
    """The same; the parameters are called the other way round."""
    teacher.bias[...] = teacher.bias[...] + x.mean()
    student.bias[...] = 0.9 * student.bias[...] + 0.1 * teacher.bias[...]


def wrapped(*args):
    return swapped(*args)


@pytest.mark.parametrize("reference", [swapped, wrapped])
def test_the_names_of_parameters_do_not_matter(reference):
    assert check(learn, new(), new(1), X, mesh=MESH, reference=reference)


def test_another_object_than_in_the_reference_is_seen():
    def second(student, teacher, x, *, mesh):
        teacher.bias[...] = teacher.bias[...] + mean(x, mesh)

    def first(teacher, student, x):
        teacher.bias[...] = teacher.bias[...] + x.mean()

    verdict = check(second, new(), new(), X, mesh=MESH, reference=first)
    assert {one.leaf for one in verdict.findings} == {"updated student['bias']"}
    assert not verdict
