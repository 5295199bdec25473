"""Pytrees of the user's that look at what they are made of: they are made of arrays alone."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import assert_same, real_mesh

X = np.arange(8, dtype=np.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Checked:
    """Looks at rank and type."""

    a: jax.Array

    def __post_init__(self):
        assert self.a.ndim == 1
        assert self.a.dtype == jnp.float32


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Converted:
    """Computes with what it is given."""

    a: jax.Array

    def __post_init__(self):
        self.a = jnp.asarray(self.a) + jnp.zeros_like(self.a)


class Pair(NamedTuple):
    a: jax.Array
    b: jax.Array


class EvenPair(Pair):
    def __new__(cls, a, b):
        if a.shape != b.shape or a.shape[0] % 2:
            raise ValueError("two vectors of the same even size")
        return super().__new__(cls, a, b)


@jax.tree_util.register_pytree_node_class
class Layer:
    """Insists on a function among its leaves."""

    def __init__(self, a, act):
        if not callable(act):
            raise TypeError("act is a function")
        self.a, self.act = a, act
        self.size = a.size

    def tree_flatten(self):
        return (self.a, self.act), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)


TREES = {
    "checked": Checked,
    "converted": Converted,
    "pair": lambda a: EvenPair(a, a),
    "layer": lambda a: Layer(a, jnp.tanh),
}


@pytest.fixture(params=TREES)
def make(request):
    return TREES[request.param]


def program(make):
    def f(v, *, mesh):
        def total(a):
            return lax.psum(a.sum(), "data")

        s = jax.shard_map(total, mesh=mesh, in_specs=P("data"), out_specs=P())(v.a)
        return {"same": make(v.a * s), "total": s}

    return f


def test_simulate(make):
    f, v = program(make), make(jnp.asarray(X))
    want = f(v, mesh=real_mesh(data=4))
    for mesh in (sw.mesh(data=4), real_mesh(data=4)):
        got = sw.simulate(f, mesh=mesh)(v)
        assert type(got["same"]) is type(v)
        assert_same(jax.tree.leaves(got["same"])[0], jax.tree.leaves(want["same"])[0])
        assert_same(got["total"], want["total"])


def test_the_others(make):
    f, v = program(make), make(jnp.asarray(X))
    assert sw.check(f, v, mesh={"data": [1, 4]})
    assert sw.prove(f, v, mesh=sw.mesh(data=4))
    report = sw.explain(f, v, mesh=sw.mesh(data=4))
    assert "same" in str(report)
    assert "psum" in str(sw.inspect(f, v, mesh=sw.mesh(data=4)))


@pytest.mark.parametrize("make", [Checked, Converted, TREES["pair"]])
def test_through_the_shard_map_and_its_derivative(make):
    def f(v, *, mesh):
        def body(v):
            return lax.psum((v.a**2).sum(), "data"), make(v.a * 2)

        specs = {"in_specs": (P("data"),), "out_specs": (P(), P("data"))}
        return jax.shard_map(body, mesh=mesh, **specs)(v)

    v = make(jnp.asarray(X))
    simulated = sw.simulate(f, mesh=sw.mesh(data=4))
    native = functools.partial(f, mesh=real_mesh(data=4))
    assert_same(simulated(v), jax.device_get(native(v)))
    slope = jax.grad(lambda v: simulated(v)[0])(v)
    assert_same(slope, jax.device_get(jax.grad(lambda v: native(v)[0])(v)))


def test_values_are_drawn_for_their_shapes():
    shape = Checked(jax.ShapeDtypeStruct(X.shape, X.dtype))
    for tool in (sw.check, sw.prove):
        assert tool(program(Checked), shape, mesh=sw.mesh(data=4))


def test_specs_for_them(make):
    explicit = jax.sharding.AbstractMesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    f = program(lambda a: a)
    for specs in ((P("data"),), P("data")):
        got = sw.simulate(f, mesh=explicit, in_specs=specs)(make(jnp.asarray(X)))
        assert_same(got["total"], X.sum())


def test_one_that_insists_on_its_size_is_not_cut_down():
    size = 1 << 22

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Fixed:
        a: jax.Array

        def __post_init__(self):
            if self.a.shape != (size,):
                raise RuntimeError("it has another size")

    def f(v, *, mesh):
        def body(a):
            return lax.psum(jnp.sort(a).sum(), "data")

        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(v.a)

    proof = sw.prove(f, Fixed(jax.ShapeDtypeStruct((size,), jnp.float32)), mesh=sw.mesh(data=4))
    assert proof.status == "unknown"
    assert "another size" not in str(proof)
