"""One way to say a mesh everywhere, and calls that contradict themselves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import shardwise as sw

X = np.arange(16, dtype=np.float32)


def total(x, *, mesh):
    body = lambda part: jax.lax.psum(part.sum(), "data")  # noqa: E731
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def real_mesh(size):
    return Mesh(np.array(jax.devices()[:size]), ("data",))


def trained(mesh):
    step = sw.data_parallel(lambda p, rows: (rows - p) ** 2, optax.sgd(0.1), mesh=mesh)
    state, _ = step(step.init(jnp.zeros(())), X)
    return round(float(state.params), 3)


def evaluated(mesh):
    return sw.evaluate(lambda _, rows: rows, None, X, batch=4, mesh=mesh, progress=False)["mean"]


TAKES_ONE = {
    "simulate": (lambda mesh: float(sw.simulate(total, mesh=mesh)(X)), 120.0),
    "check": (lambda mesh: bool(sw.check(total, X, mesh=mesh)), True),
    "prove": (lambda mesh: bool(sw.prove(total, X, mesh=mesh)), True),
    "explain": (lambda mesh: sw.explain(total, X, mesh=mesh).devices, 4),
    "inspect": (lambda mesh: dict(sw.inspect(total, X, mesh=mesh).mesh), {"data": 4}),
    "evaluate": (evaluated, 7.5),
    "data_parallel": (trained, 1.5),
    "primitives": (lambda mesh: float(sw.primitives.shard_map_psum(X, mesh=mesh)), 120.0),
    "case": (lambda mesh: sw.case(mesh=mesh)(lambda: (total, (X,))).mesh, {"data": 4}),
}


@pytest.mark.once
@pytest.mark.parametrize("name", TAKES_ONE)
def test_a_mesh_is_said_in_one_way(name):
    call, want = TAKES_ONE[name]
    assert call(sw.mesh(data=4)) == want
    assert call({"data": 4}) == want
    assert call(real_mesh(4)) == want


def test_where_several_are_tried_a_size_may_be_a_list():
    for meshes in ({"data": [2, 4]}, [{"data": 2}, {"data": 4}], [{"data": 4}, real_mesh(2)]):
        assert sw.check(total, X, mesh=meshes).meshes == ("{data: 2}", "{data: 4}")
    for call in (sw.simulate, sw.explain, sw.inspect):
        with pytest.raises(sw.ShardingError, match="axis 'data' has several sizes"):
            call(total, *([X] if call is not sw.simulate else []), mesh={"data": [1, 2]})


def test_a_call_with_another_mesh_is_told():
    call = sw.simulate(total, mesh={"data": 4})
    assert call(X, mesh=sw.mesh(data=4)) == 120
    with pytest.raises(
        sw.ShardingError, match=r"has mesh=\{'data': 8\}.*created for \{'data': 4\}"
    ):
        call(X, mesh=sw.mesh(data=8))


@jax.shard_map(in_specs=(P(None, "i"), P("i")), out_specs=P("i"))
def scattered_product(a, b):
    return jax.lax.psum_scatter(a @ b, "i", tiled=True)


def test_a_decorated_function_without_a_mesh_serves_every_mesh():
    a, b = np.arange(64, dtype=np.float32).reshape(8, 8), np.eye(8, 2, dtype=np.float32)
    verdict = sw.check(scattered_product, a, b, mesh={"i": [1, 2, 4]})
    assert verdict, verdict
    assert verdict.meshes == ("{i: 1}", "{i: 2}", "{i: 4}")
    for size in (8, 2):
        simulated = sw.simulate(scattered_product, mesh=sw.mesh(i=size))(a, b)
        np.testing.assert_array_equal(simulated, a @ b)
    assert sw.explain(scattered_product, a, b, mesh=sw.mesh(i=4)).devices == 4
    mesh = Mesh(np.array(jax.devices()[:4]), ("i",))
    with jax.set_mesh(mesh):  # the simulation leaves nothing behind for real devices
        np.testing.assert_array_equal(scattered_product(a, b), a @ b)


def test_a_decorated_function_keeps_its_own_axis_names():
    @jax.shard_map(in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
    def shifted(x):
        return jax.lax.ppermute(x, "i", [(0, 1), (1, 0)])

    x = np.arange(4.0, dtype=np.float32)
    for outer in (1, 2, 3):
        found = sw.simulate(shifted, mesh=sw.mesh(i=2, j=outer))(x)
        np.testing.assert_array_equal(found, [2, 3, 0, 1])
