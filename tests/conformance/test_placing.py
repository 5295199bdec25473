"""Programs that say how arrays lie: it changes no value, and needs no devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.lax import full as imported
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import assert_same, real_mesh

X = np.arange(8, dtype=np.float32)


def total(y, mesh=None):
    def body(y):
        return lax.psum((y * y).sum(), "a")

    return jax.shard_map(body, mesh=mesh, in_specs=P("a"), out_specs=P())(y)


MADE = {
    "zeros": lambda x, s: jnp.zeros(x.shape, device=s),
    "ones": lambda x, s: jnp.ones(x.shape, device=s),
    "full": lambda x, s: jnp.full(x.shape, 2.0, device=s),
    "full of a value": lambda x, s: jnp.full(x.shape, x[3], device=s),
    "arange": lambda x, s: jnp.arange(8.0, device=s),
    "linspace": lambda x, s: jnp.linspace(0, 1, 8, device=s),
    "empty": lambda x, s: 0 * jnp.empty(x.shape, device=s),
    "zeros_like": lambda x, s: jnp.zeros_like(x, device=s),
    "ones_like": lambda x, s: jnp.ones_like(x, device=s),
    "full_like": lambda x, s: jnp.full_like(x, 2.0, device=s),
    "array": lambda x, s: jnp.array(x, device=s),
    "asarray": lambda x, s: jnp.asarray(X, device=s),
    "astype": lambda x, s: jnp.astype(x, jnp.bfloat16, device=s).astype(jnp.float32),
    "eye": lambda x, s: jnp.eye(8, device=s)[0],
    "lax.full": lambda x, s: lax.full(x.shape, 2.0, sharding=s),
    "lax.full, imported": lambda x, s: imported(x.shape, 2.0, sharding=s),
    "lax.full_like": lambda x, s: lax.full_like(x, 2.0, sharding=s),
}
"""What makes arrays, on a sharding."""

LAID = {
    "device_put": lambda x, s: jax.device_put(x, s),
    "device_put of a tree": lambda x, s: jax.device_put({"u": x, "v": (x,)}, {"u": s, "v": s})["u"],
    "device_put of a tuple": lambda x, s: jax.device_put((x, x), (s, s))[1],
    "jit in": lambda x, s: jax.jit(lambda x: x * 2, in_shardings=s)(x),
    "jit out": lambda x, s: jax.jit(lambda x: x * 2, out_shardings=s)(x),
    "jit of a tree": lambda x, s: jax.jit(
        lambda d, k: (d["u"] * k, d["v"]),
        static_argnums=1,
        in_shardings=({"u": s, "v": None},),
        out_shardings=(s, None),
    )({"u": x, "v": x}, 3)[0],
    "jit of a constant": lambda x, s: jax.jit(lambda y: y * 2, in_shardings=s)(X),
    "jit in a scan": lambda x, s: lax.scan(
        lambda c, _: (jax.jit(jnp.sin, in_shardings=s, out_shardings=s)(c), None), x, None, length=3
    )[0],
    "a derivative of jit": lambda x, s: jax.grad(
        lambda x: jax.jit(lambda x: (x**2).sum(), in_shardings=s)(x)
    )(x),
    "a shape": lambda x, s: jnp.zeros(
        jax.eval_shape(jnp.sin, jax.ShapeDtypeStruct((8,), jnp.float32, sharding=s)).shape
    ),
}
"""What takes a sharding, or a spec where a mesh is around."""


def handed(op):
    return lambda x, *, mesh: total(x + op(x, NamedSharding(mesh, P("a"))), mesh)


def ambient(op):
    return lambda x: total(x + op(x, P("a")))


def set_inside(op):
    def f(x, *, mesh):
        with jax.set_mesh(mesh):
            return total(x + op(x, P("a")))

    return f


@pytest.mark.parametrize("name", [*MADE, *LAID])
def test_a_sharding(name):
    f = handed({**MADE, **LAID}[name])
    want = f(X, mesh=real_mesh(a=4))
    for mesh in (sw.mesh(a=4), real_mesh(a=4)):
        assert_same(sw.simulate(f, mesh=mesh)(X), want)
    assert sw.check(f, X, mesh={"a": [1, 4]})


@pytest.mark.parametrize("name", LAID)
def test_a_spec_with_a_mesh_around(name):
    f = ambient(LAID[name])
    with jax.set_mesh(real_mesh(a=4)):
        want = jax.device_get(jax.jit(f)(X))
    for mesh in (sw.mesh(a=4), real_mesh(a=4)):
        assert_same(sw.simulate(f, mesh=mesh)(X), want)
        assert_same(sw.simulate(set_inside(LAID[name]), mesh=mesh)(X), want)
    assert sw.check(f, X, mesh={"a": [1, 4]})


def test_a_jit_outside_serves_every_mesh():
    double = jax.jit(lambda x: x * 2, in_shardings=P("a"), out_shardings=P("a"))
    for n in (2, 4, 8):
        assert_same(sw.simulate(lambda x: total(double(x)), mesh={"a": n})(X), (4 * X**2).sum())
    with jax.set_mesh(real_mesh(a=2)):
        assert_same(jax.device_get(double(X)), 2 * X)


@pytest.mark.parametrize("mesh", [sw.mesh(a=4), real_mesh(a=4)], ids=["virtual", "real"])
@pytest.mark.parametrize("made", [ambient(LAID["jit in"]), handed(MADE["arange"])])
def test_the_others(made, mesh):
    assert sw.prove(made, X, mesh=mesh)
    assert sw.explain(made, X, mesh=mesh).collectives
    assert "psum" in str(sw.inspect(made, X, mesh=mesh))


def test_on_an_explicit_mesh_it_is_part_of_the_type():
    mesh = jax.sharding.AbstractMesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    seen = []

    def f(x):
        mesh = jax.sharding.get_abstract_mesh()
        y = jnp.zeros((8, 4), device=NamedSharding(mesh, P("a", "b")))
        seen.append(jax.typeof(y).sharding.spec)
        z = jax.vmap(jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("a"))), in_axes=1)(
            jax.reshard(y, NamedSharding(mesh, P("a")))
        )
        return y.sum() + z.sum() + x.sum()

    assert_same(sw.simulate(f, mesh=mesh)(X), X.sum())
    assert seen == [P("a", "b")]


IN_A_BODY = {
    "jit": lambda x, mesh: jax.jit(jnp.sin, in_shardings=P("b"), out_shardings=P())(x),
    "vmap of jit": lambda x, mesh: jax.vmap(jax.jit(jnp.sin, in_shardings=P("b")))(x[None])[0],
    "zeros": lambda x, mesh: x + jnp.zeros(x.shape, device=NamedSharding(mesh, P("b"))),
}


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("name", IN_A_BODY)
def test_in_a_body_that_is_partly_manual(name, kind):
    def f(x, on=None):
        on = on or jax.sharding.get_abstract_mesh()

        def body(x):
            return IN_A_BODY[name](x, on) * lax.axis_index("a").astype(x.dtype)

        x = jax.reshard(x, P("a")) if kind is AxisType.Explicit else x
        return jax.shard_map(body, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})(x)

    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        want = jax.device_get(jax.jit(lambda x: f(x, mesh))(X))
    virtual = jax.sharding.AbstractMesh((2, 2), ("a", "b"), axis_types=(kind,) * 2)
    for one in (virtual, mesh):
        assert_same(sw.simulate(f, mesh=one)(X), want)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_the_shape_of_an_argument_with_a_spec(kind):
    shape = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=P("a"))
    mesh = jax.sharding.AbstractMesh((4,), ("a",), axis_types=(kind,))
    for f in (total, lambda x, *, mesh: total(x, mesh)):
        assert sw.prove(f, shape, mesh=mesh)
        assert sw.explain(f, shape, mesh=mesh).collectives
    assert sw.prove(total, shape, mesh=mesh, reference=lambda x: (x * x).sum())


WITHOUT_A_MESH = {
    "jit": lambda x: jax.jit(jnp.sin, in_shardings=P("a"))(x),
    "device_put": lambda x: jax.device_put(x, P("a")),
    "constraint": lambda x: lax.with_sharding_constraint(x, P("a")),
    "reshard": lambda x: jax.reshard(x, P("a")),
}


@pytest.mark.parametrize("mesh", [sw.mesh(a=4), real_mesh(a=4)], ids=["virtual", "real"])
@pytest.mark.parametrize("name", WITHOUT_A_MESH)
def test_a_spec_without_a_mesh_around(name, mesh):
    def f(x, *, mesh):
        return WITHOUT_A_MESH[name](x)

    with pytest.raises(sw.ShardingError, match=r"test_placing.py:\d+: a PartitionSpec is") as told:
        sw.simulate(f, mesh=mesh)(X)
    assert "with jax.set_mesh(mesh)" in str(told.value)


WRONG = {
    "dimension 0 of size 3 is split 4 ways": (
        "is partitioned 4 times",
        lambda x: jax.device_put(x[:3], P("a")),
    ),
    "no mesh axis 'b'": ("not found in mesh", lambda x: jax.jit(jnp.sin, in_shardings=P("b"))(x)),
    "axis 'a' is Auto here": ("of type Auto", lambda x: jnp.zeros((8,), out_sharding=P("a"))),
    "reshard is given": ("of type Auto", lambda x: jax.reshard(x, P("a"))),
}
"""Our words, those of JAX, and the program."""


@pytest.mark.parametrize("words", WRONG)
def test_what_jax_refuses_is_refused(words):
    native, f = WRONG[words]
    with jax.set_mesh(real_mesh(a=4)), pytest.raises(ValueError, match=native):
        jax.jit(f)(X)
    with pytest.raises(sw.ShardingError, match=words):
        sw.simulate(f, mesh={"a": 4})(X)


def test_an_inner_shard_map_that_names_its_mesh():
    def f(x, *, mesh, inner):
        def body(x):
            part = {"in_specs": P("b"), "out_specs": P(), "axis_names": {"b"}}
            return jax.shard_map(lambda y: lax.psum(y, "b"), mesh=inner, **part)(x)

        specs = {"in_specs": P("a"), "out_specs": P("a"), "axis_names": {"a"}}
        return jax.shard_map(body, mesh=mesh, **specs)(x)

    real = real_mesh(a=2, b=2)
    with pytest.raises(ValueError, match="should match the mesh passed"):
        f(X, mesh=real, inner=real)
    for mesh in (sw.mesh(a=2, b=2), real):
        with pytest.raises(sw.ShardingError, match="nested in another one") as told:
            sw.simulate(lambda x, *, mesh: f(x, mesh=mesh, inner=mesh), mesh=mesh)(X)
        assert "leave mesh= out of the inner one" in str(told.value)
        got = sw.simulate(lambda x, *, mesh: f(x, mesh=mesh, inner=None), mesh=mesh)(X)
        assert_same(got, jax.device_get(jax.jit(lambda x: f(x, mesh=real, inner=None))(X)))


ONE = jax.sharding.SingleDeviceSharding(jax.devices()[0])
ON_ONE_DEVICE = {
    "before": lambda x, f: f(lambda y: y)(jax.device_put(x, ONE)),
    "before, in a sum": lambda x, f: f(lambda y: y)(x + jnp.asarray(X, device=ONE)),
    "before, computed from": lambda x, f: f(lambda y: y)(jnp.sin(jax.device_put(x, ONE)) * 2),
    "beside": lambda x, f: f(lambda y: y)(x) + jax.device_put(jnp.ones(2), ONE),
    "one of two results": lambda x, f: jax.device_put(f(lambda y: y)(x), ONE) + f(jnp.sin)(x),
    "in the body": lambda x, f: f(lambda y: jax.device_put(y, ONE))(x),
    "in the body, a constant": lambda x, f: f(lambda y: y + jnp.asarray(X[:2], device=ONE))(x),
}


def over(mesh):
    def make(g):
        return jax.shard_map(
            lambda y: lax.psum(g(lax.psum(y, "a")), "a"), mesh=mesh, in_specs=P("a"), out_specs=P()
        )

    return make


@pytest.mark.parametrize("name", ON_ONE_DEVICE)
def test_a_value_on_one_device_is_not_mixed_with_the_mesh(name):
    f = ON_ONE_DEVICE[name]
    for native in (f, jax.jit(f, static_argnums=1)):
        with pytest.raises(ValueError, match="device"):
            native(X, over(real_mesh(a=4)))
    program = lambda x, *, mesh: f(x, over(mesh))  # noqa: E731
    with pytest.raises(sw.ShardingError, match=r"test_placing.py:\d+: this combines a value"):
        sw.simulate(program, mesh={"a": 4})(X)


def test_a_result_may_be_put_on_one_device():
    f = lambda x, mesh: jax.device_put(total(x, mesh), ONE) + 1  # noqa: E731
    got = sw.simulate(lambda x, *, mesh: f(x, mesh), mesh={"a": 4})(X)
    assert_same(got, f(X, real_mesh(a=4)))
