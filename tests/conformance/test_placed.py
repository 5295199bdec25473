"""Arguments that say themselves how they lie: one meaning in all tools, on any mesh."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import assert_same, normal

X, W = normal(8, 4), normal(4, 4)
EXPLICIT = (AxisType.Explicit,)


def virtual(size: int) -> AbstractMesh:
    return AbstractMesh((size,), ("a",), axis_types=EXPLICIT)


def real(size: int = 4) -> Mesh:
    return jax.make_mesh((size,), ("a",), axis_types=EXPLICIT)


MESHES = {"real": real(), "virtual": virtual(4)}
SIZES = [virtual(1), virtual(2), virtual(4)]


WHOLE = P()


class Program(NamedTuple):
    """A function, its arguments, and how they lie."""

    f: object
    args: tuple
    specs: tuple


PROGRAMS: dict[str, Program] = {}


def program(x: P, w: P | None = None):
    def enter(f):
        args, specs = ((X,), (x,)) if w is None else ((X, W), (x, w))
        PROGRAMS[f.__name__] = Program(f, args, specs)
        return f

    return enter


def total(y):
    return lax.psum(jnp.tanh(y).sum(0), "a")


@program(P("a"))
def specs_that_are_said(x):
    return jax.shard_map(total, in_specs=P("a"), out_specs=P())(x)


@program(P("a"))
def specs_from_the_types(x):
    return jax.shard_map(total, out_specs=P())(x)


@program(P("a"))
def a_mesh_that_is_handed_over(x, *, mesh):
    return jax.shard_map(total, mesh=mesh, in_specs=P("a"), out_specs=P())(x)


@program(P("a"), P())
def passed_on_in_a_body(x, w):
    def body(x, w):
        n = lax.axis_size("a")
        part = sums = (x @ w).sum(0)
        for _ in range(n - 1):
            part = lax.ppermute(part, "a", [(i, (i + 1) % n) for i in range(n)])
            sums += part
        return x - sums

    return jax.shard_map(body, out_specs=P("a"))(x, w)


@program(P("a"), P())
def no_shard_map(x, w):
    return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


@program(P(None, "a"))
def resharded(x):
    return jax.reshard(jnp.sin(x), P("a")) * 2


@program(P("a"), P())
def products_with_a_sharding(x, w):
    return jnp.einsum("ba,bc->ac", x, x @ w, out_sharding=P("a"))


@program(P("a"))
def automatic_in_part(x):
    return jax.sharding.auto_axes(lambda x: x * 2 + x[::-1])(x, out_sharding=P("a"))


def on(mesh, x, spec):
    return jax.device_put(x, NamedSharding(mesh, spec))


def placed(each: Program, mesh=MESHES["real"]):
    return [on(mesh, x, spec) for x, spec in zip(each.args, each.specs, strict=True)]


def shapes(each: Program, mesh=MESHES["real"]):
    return [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
        for x, spec in zip(each.args, each.specs, strict=True)
    ]


def native(each: Program):
    mesh = MESHES["real"]
    more = {"mesh": mesh} if each.f is a_mesh_that_is_handed_over else {}
    with jax.set_mesh(mesh):
        return jax.device_get(jax.jit(lambda *args: each.f(*args, **more))(*placed(each)))


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_all_tools(name, mesh):
    """Arrays on the mesh and shapes with a sharding are as plain arrays and `in_specs`."""
    each, mesh = PROGRAMS[name], MESHES[mesh]
    own, described = placed(each), shapes(each)
    plainly = {"mesh": mesh, "in_specs": each.specs}
    want = native(each)
    assert_same(jax.device_get(sw.simulate(each.f, mesh=mesh)(*own)), want)
    assert_same(jax.device_get(jax.jit(sw.simulate(each.f, mesh=mesh))(*own)), want)
    assert sw.check(each.f, *own, mesh=[*SIZES, mesh])
    assert sw.check(each.f, *own, mesh=mesh, reference=want)
    assert sw.check(each.f, *described, mesh=mesh)
    assert str(sw.inspect(each.f, *own, mesh=mesh)) == str(
        sw.inspect(each.f, *each.args, **plainly)
    )
    for tool in (sw.prove, sw.explain):
        said = str(tool(each.f, *each.args, **plainly))
        assert str(tool(each.f, *own, mesh=mesh)) == said
        assert str(tool(each.f, *described, mesh=mesh)) == said


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", ["specs_from_the_types", "no_shard_map"])
def test_with_a_mesh_around(name, mesh):
    each, mesh = PROGRAMS[name], MESHES[mesh]
    want = native(each)
    with jax.set_mesh(MESHES["real"]):
        own = placed(each)
        assert_same(jax.device_get(sw.simulate(each.f, mesh=mesh)(*own)), want)
        assert sw.check(each.f, *own, mesh=[*SIZES, mesh])
        assert sw.inspect(each.f, *own, mesh=mesh).steps
        assert sw.prove(each.f, *own, mesh=mesh)


def wrong(x):
    return jax.shard_map(lambda y: lax.pmean(y.sum(0), "a"), out_specs=P())(x)


@pytest.mark.parametrize("given", [placed, shapes])
def test_what_is_wrong_is_seen(given):
    args = given(Program(wrong, (X,), (P("a"),)))
    assert sw.check(wrong, *args, mesh=SIZES).wrong_on == ("{a: 2}", "{a: 4}")
    assert sw.prove(wrong, *args, mesh=SIZES[1:]).status == "refuted"


@pytest.mark.parametrize("mesh", [real(1), real(2), real(8)], ids=str)
def test_a_mesh_of_another_size(mesh):
    """The spec is what counts, and serves the mesh that is asked for."""
    each = PROGRAMS["no_shard_map"]
    want = native(each)
    own = placed(each, mesh)
    assert_same(jax.device_get(sw.simulate(each.f, mesh=virtual(4))(*own)), want)
    assert sw.check(each.f, *own, mesh=SIZES, reference=want)
    assert sw.inspect(each.f, *own, mesh=virtual(4)).steps
    assert sw.prove(each.f, *own, mesh=virtual(4))


def test_a_mesh_of_one_device():
    f = PROGRAMS["specs_from_the_types"].f
    x = on(real(1), X, P("a"))
    assert_same(jax.device_get(sw.simulate(f, mesh=real(1))(x)), np.tanh(X).sum(0))


def shares(x):
    return jax.shard_map(lambda y: y[:1], out_specs=P("a"))(x)


def test_the_same_everywhere_is_said_too():
    """As on devices: what lies whole on the mesh is whole in every body."""
    x = on(real(), X, P())
    with jax.set_mesh(real()):
        want = jax.device_get(jax.jit(shares)(x))
    assert_same(sw.simulate(shares, mesh=virtual(4))(x), want)
    assert sw.inspect(shares, x, mesh=virtual(4)).steps[-1].shape == want.shape
    with pytest.raises(sw.ShardingError, match="its spec in in_specs is"):
        sw.inspect(shares, x, mesh=virtual(4), in_specs=P("a"))


REFERENCES = {
    "traced": lambda x, w: no_shard_map(x, w),
    "NumPy": lambda x, w: np.asarray(no_shard_map(np.asarray(x), np.asarray(w))),
    "with a mesh": lambda x, w, *, mesh: no_shard_map(x, w),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_has_them_on_one_device(name):
    def f(x, w):
        return no_shard_map(x, w)

    own = placed(PROGRAMS["no_shard_map"])
    assert sw.check(f, *own, mesh=SIZES, reference=REFERENCES[name])
    if name == "traced":
        assert sw.prove(f, *own, mesh=SIZES, reference=REFERENCES[name])
    assert not sw.check(
        f, *own, mesh=SIZES, reference=lambda x, w: 2 * no_shard_map(x, w), fix=False
    )


def test_a_reference_may_do_what_types_would_not_let_it():
    f = lambda x: jax.reshard(x, P()).T @ jax.reshard(x, P())  # noqa: E731
    x = on(real(), X, P("a"))
    assert sw.check(f, x, mesh=SIZES, reference=lambda x: x.T @ x)
    assert sw.prove(f, x, mesh=SIZES, reference=lambda x: x.T @ x)


def test_random_keys():
    def f(keys):
        return jax.shard_map(jax.vmap(jax.random.normal), out_specs=P("a"))(keys)

    keys = jax.random.split(jax.random.key(0), 8)
    own = on(real(), keys, P("a"))
    with jax.set_mesh(real()):
        want = jax.device_get(jax.jit(f)(own))
    assert_same(sw.simulate(f, mesh=virtual(4))(own), want)
    assert sw.check(f, own, mesh=SIZES, reference=want)
    assert sw.inspect(f, own, mesh=virtual(4)).steps


def test_a_sum_that_is_owed():
    def owed(x):
        return jnp.einsum("ba,bc->ac", x, x, out_sharding=P(unreduced={"a"}))

    def pay(z):
        body = {"in_specs": P(unreduced={"a"}), "out_specs": P()}
        return jax.shard_map(lambda z: lax.psum(z, "a"), **body)(z)

    with jax.set_mesh(real()):
        z = jax.jit(owed)(on(real(), X, P("a")))
        want = jax.device_get(jax.jit(pay)(z))
    assert_same(sw.simulate(pay, mesh=virtual(4))(z), want)
    assert sw.check(pay, z, mesh=virtual(4), reference=want)
    assert sw.inspect(pay, z, mesh=virtual(4)).steps


def test_trees_with_static_arguments():
    def f(params, how, x):
        reduce = {"sum": lax.psum, "max": lax.pmax}[how]
        body = lambda p, x: reduce((x @ p["w"]).max(0), "a") + p["b"]  # noqa: E731
        return jax.shard_map(body, out_specs=P())(params, x)

    def shape(*dims, spec=WHOLE):
        return jax.ShapeDtypeStruct(dims, jnp.float32, sharding=NamedSharding(real(), spec))

    args = {"w": shape(4, 4), "b": shape(4)}, "max", shape(8, 4, spec=P("a"))
    assert sw.check(f, *args, mesh=SIZES, static_argnums=1)
    assert sw.prove(f, *args, mesh=SIZES, static_argnames="how")


def test_shapes_that_are_cut_down_keep_their_specs():
    def f(x):  # too large to run, and not to be proved
        return jax.shard_map(lambda y: y[::-1], out_specs=P("a"))(x)

    large = on(real(), np.ones((1 << 11, 1 << 11), np.float32), P("a"))
    for x in (large, jax.ShapeDtypeStruct(large.shape, large.dtype, sharding=large.sharding)):
        assert "With smaller sizes" in str(sw.prove(f, x, mesh=virtual(4)))


# --- what is refused


def test_axes_that_the_mesh_lacks():
    x = on(real(), X, P("a"))
    with pytest.raises(sw.ShardingError, match=r"an argument: .* names axis 'a'") as told:
        sw.check(lambda x: x * 2, x, mesh={"data": 4})
    assert "with the axes of the array's sharding" in str(told.value)


def test_an_array_that_is_closed_over():
    w = on(real(), W, P())
    x = on(real(), X, P("a"))
    f = lambda x: x @ w  # noqa: E731
    with jax.set_mesh(real()):
        assert_same(jax.device_get(sw.simulate(f)(x)), jax.device_get(jax.jit(f)(x)))
    for tool in (sw.check, sw.prove, sw.explain, sw.inspect):
        with pytest.raises(sw.ShardingError, match=r"test_placed.py:\d+: .* closes over") as told:
            tool(f, x, mesh=virtual(4))
        assert "pass it to the program as an argument" in str(told.value)


# --- values that leak


KEPT: list = []


def keep(x):
    KEPT.append(x)
    return x


LEAKS = {
    "shard_map": lambda x, sums: sums(lambda y: keep(y * 2))(x),
    "jit in a body": lambda x, sums: sums(jax.jit(lambda y: keep(y * 2)))(x),
    "jit": lambda x, sums: sums(jnp.sin)(jax.jit(lambda x: keep(x * 2))(x)),
    "scan": lambda x, sums: sums(jnp.sin)(
        lax.scan(lambda c, _: (keep(c * 2), None), x, None, length=2)[0]
    ),
    "cond": lambda x, sums: sums(jnp.sin)(
        lax.cond(x.sum() > 0, lambda x: keep(x * 2), lambda x: x, x)
    ),
    "grad": lambda x, sums: sums(jnp.sin)(jax.grad(lambda x: keep(x * 2).sum())(x)),
    "vmap": lambda x, sums: sums(jnp.sin)(jax.vmap(lambda x: keep(x * 2))(x)),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_leaked_value_is_told_as_by_jit(name):
    def f(x, *, mesh):
        KEPT.clear()

        def sums(g):
            body = lambda y: lax.psum(g(y).sum(), "a")  # noqa: E731
            return jax.shard_map(body, mesh=mesh, in_specs=P("a"), out_specs=P())

        return LEAKS[name](x, sums), KEPT[0]

    x, mesh = jnp.arange(8.0), sw.mesh(a=4)
    on_devices = jax.make_mesh((4,), ("a",), axis_types=(AxisType.Auto,))
    tools = [sw.check, sw.prove, sw.inspect, sw.explain]
    calls = [lambda tool=tool: tool(f, x, mesh=mesh) for tool in tools]
    calls += [
        lambda: jax.jit(lambda x: f(x, mesh=on_devices))(x),
        lambda: sw.simulate(f, mesh=mesh)(x),
        lambda: jax.jit(sw.simulate(f, mesh=mesh))(x),
    ]
    for call in calls:
        with pytest.raises(jax.errors.UnexpectedTracerError):
            call()


@pytest.mark.parametrize("at_once", [1, 2, "auto"])
def test_several_shards_at_once_under_jit(at_once):
    def f(x):
        return jax.shard_map(lambda y: lax.psum(y.sum(), "a"), in_specs=P("a"), out_specs=P())(x)

    mesh = real()
    x = jax.device_put(X, NamedSharding(mesh, P("a")))
    with jax.set_mesh(mesh):
        want = jax.jit(f)(x)
    assert_same(jax.jit(sw.simulate(f, mesh=mesh, at_once=at_once))(x), want)


@pytest.mark.parametrize("how", ["reduced", "unreduced"])
@pytest.mark.parametrize("shape", [(), (8,), (8, 4)])
def test_a_spec_without_entries_may_say_what_is_owed(how, shape):
    def lies(w):
        assert getattr(jax.typeof(w).sharding.spec, how) == {"a"}
        return w + w

    spec = P(**{how: {"a"}})
    sw.simulate(lies, mesh=virtual(4), in_specs=spec)(jnp.ones(shape))
    with pytest.raises(sw.ShardingError, match="names axis 'other'"):
        sw.simulate(lies, mesh=virtual(4), in_specs=P(**{how: {"other"}}))(jnp.ones(shape))
