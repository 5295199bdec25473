"""A mesh that a program has no part for: each verb says so, and none says so of a program that has.

Every one of the programs below is legitimate use of the mesh but the first two.
"""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw

X = np.arange(8, dtype=np.float32)
MESH = sw.mesh(data=4)
EXPLICIT = AbstractMesh((4,), ("data",), axis_types=(AxisType.Explicit,))


def plain(x):
    return x.sum()


IDLE = {"plain": plain, "jitted": jax.jit(plain)}


def constrained(x):
    return jax.lax.with_sharding_constraint(x * 2, P("data")).sum()


def constrained_by_name(x):
    return jax.lax.with_sharding_constraint(x * 2, NamedSharding(MESH, P("data"))).sum()


def given_the_mesh(x, *, mesh):
    return x / mesh.shape["data"]


def asking_for_the_mesh(x):
    return x / jax.sharding.get_abstract_mesh().size


def mapped(x):
    return jax.shard_map(lambda part: part, in_specs=P("data"), out_specs=P("data"))(x)


def mapped_alike(x):
    return jax.shard_map(lambda part: part, in_specs=P(), out_specs=P())(x)


def in_a_branch(x):
    return jax.lax.cond(x[0] > 1, mapped, lambda x: x, x)


USED = (
    constrained,
    constrained_by_name,
    given_the_mesh,
    asking_for_the_mesh,
    mapped,
    mapped_alike,
    in_a_branch,
    jax.grad(lambda x: mapped(x).sum()),
)


@pytest.mark.parametrize("f", IDLE.values(), ids=IDLE)
def test_simulate_warns_once(f):
    simulated = sw.simulate(f, mesh=MESH)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        simulated(X)
        simulated(X)
    assert [one.filename for one in found] == [__file__]
    assert "there is no shard_map in it, and the mesh {'data': 4} has no effect" in str(
        found[0].message
    )


@pytest.mark.parametrize("f", USED)
def test_simulate_is_silent_where_the_mesh_is_used(f):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sw.simulate(f, mesh=MESH)(X)


@pytest.mark.parametrize("mesh", [None, sw.mesh(data=1)])
def test_simulate_is_silent_on_one_device(mesh):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sw.simulate(plain, mesh=mesh)(X)


def test_simulate_is_silent_under_a_mesh_of_the_callers():
    with warnings.catch_warnings(), jax.sharding.use_abstract_mesh(EXPLICIT):
        warnings.simplefilter("error")
        sw.simulate(plain, mesh=EXPLICIT)(X)


@pytest.mark.parametrize("verb", ["check", "prove", "inspect", "explain"])
def test_the_others_say_so(verb):
    says = "there is no shard_map in the program"
    assert says in str(getattr(sw, verb)(plain, X, mesh=MESH))
    assert says not in str(getattr(sw, verb)(plain, X, mesh={"data": 1})) or verb == "explain"
    for used in (mapped, mapped_alike, in_a_branch):
        assert says not in str(getattr(sw, verb)(used, X, mesh=MESH))


@pytest.mark.parametrize("verb", ["check", "prove"])
def test_a_program_without_shard_map_has_nothing_to_check(verb):
    said = getattr(sw, verb)(plain, X, mesh=MESH)
    assert said.ok
    assert "nothing to check: no shard_map" in str(said).splitlines()[0]
    assert "right on" not in str(said)
    assert "proved on" not in str(said)
    assert "sw.explain" in str(said)


@pytest.mark.parametrize("f", [plain, jax.jit(plain), constrained, constrained_by_name])
def test_it_is_not_run_whatever_its_size(f):
    verdict = sw.check(f, jax.ShapeDtypeStruct((1 << 45,), np.float32), mesh={"data": [1, 4]})
    assert str(verdict).startswith(
        f"{f.__name__}: nothing to check: no shard_map, the compiler partitions the program"
    )


@pytest.mark.parametrize("f", [given_the_mesh, asking_for_the_mesh])
def test_a_program_that_computes_with_the_sizes_of_the_mesh_is_run(f):
    assert not sw.check(f, X, mesh={"data": [1, 4]})


def test_with_a_reference_it_is_run():
    assert not sw.check(plain, X, mesh=MESH, reference=lambda x: 2 * x.sum())
