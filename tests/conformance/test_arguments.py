"""Arguments that are not arrays, and meshes around and inside a program."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import device_count, devices, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import assert_same, normal, real_mesh

X = normal(8, 3)


def scaled(x, how, *, mesh, times=1, fn=None):
    def body(x):
        y = {"sum": lax.psum, "max": lax.pmax}[how](x, "data")
        return (y if fn is None else fn(y)) * times

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def reduced(x, how, *, mesh):
    return jnp.sum(scaled(x, how, mesh=mesh))


SUMS = X.reshape(4, 2, 3).sum(0)
MESH = sw.mesh(data=4)


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": 1},
        {"static_argnums": (1,)},
        {"static_argnums": -1},
        {"static_argnames": "how"},
        {"static_argnames": ["how"]},
    ],
)
def test_static_by_number_or_name(options):
    call = sw.simulate(scaled, mesh=MESH, **options)
    assert_same(call(X, "sum"), SUMS)
    assert_same(call(X, "max"), X.reshape(4, 2, 3).max(0))
    assert_same(call(X, how="sum"), SUMS)
    assert_same(jax.jit(call, static_argnums=1)(X, "sum"), SUMS)


def summed(x, *rest, mesh):
    how = "sum" if "sum" in rest else "max"
    return reduced(x, how, mesh=mesh) * len(rest)


@pytest.mark.parametrize(
    "numbers", [np.int64(2), [np.int32(2)], np.array([2]), np.array(2), (2, 5), (-1,), (2, -9), {2}]
)
def test_static_numbers_are_those_of_jit(numbers):
    args = X, 2.0, "sum"
    want = jax.jit(summed, static_argnums=numbers, static_argnames="mesh")
    want = want(*args, mesh=real_mesh(data=4))
    assert_same(sw.simulate(summed, mesh=MESH, static_argnums=numbers)(*args), want)
    assert sw.check(summed, *args, mesh=[MESH], static_argnums=numbers)
    assert sw.prove(summed, *args, mesh=[MESH], static_argnums=numbers)
    sw.explain(summed, *args, mesh=MESH, static_argnums=numbers)


@pytest.mark.parametrize(
    ("number", "words"), [(5, "has 5, and"), (-9, "has -9, and"), (1.5, "1.5")]
)
def test_a_static_number_that_is_none(number, words):
    with pytest.raises(sw.ArgumentError, match=words):
        sw.simulate(scaled, mesh=MESH, static_argnums=number)(X, "sum")


def test_functions_and_numbers_as_keywords():
    call = sw.simulate(scaled, mesh=MESH, static_argnames=("how", "fn"))
    assert_same(call(X, "sum", fn=jnp.sin, times=2), np.sin(SUMS) * 2)
    assert_same(call(X, "sum", fn=jnp.cos), np.cos(SUMS))


def test_traced_once_for_each_value():
    count = 0

    def f(x, n):
        nonlocal count
        count += 1
        return x * n

    call = sw.simulate(f, static_argnums=1)
    for n in (2, 3, 2, 3):
        assert_same(call(X, n), X * n)
    assert count == 2


def test_equal_values_of_other_types_are_other_programs():
    def f(x, n, *, mesh):
        size = {bool: 2, int: 3, float: 5}[type(n)]
        return jax.shard_map(lambda x: x * size, mesh=mesh, in_specs=P(), out_specs=P())(x)

    for options in ({"static_argnums": 1}, {"static_argnames": "n"}):
        call, want = sw.simulate(f, mesh=MESH, **options), jax.jit(f, static_argnames=("n", "mesh"))
        for n in (1, True, 1.0, 0, 0.0, False):
            assert_same(call(X, n), want(X, n, mesh=real_mesh(data=4)))
            assert_same(call(X, n=n) if "static_argnames" in options else call(X, n), call(X, n))


@pytest.mark.parametrize("name", ["hwo", ("how", "hwo")])
def test_static_names_that_the_function_does_not_take(name):
    calls = {
        "simulate": lambda **options: sw.simulate(scaled, mesh=MESH, **options)(X, "sum"),
        "check": lambda **options: sw.check(scaled, X, "sum", mesh={"data": [1, 2]}, **options),
        "prove": lambda **options: sw.prove(scaled, X, "sum", mesh={"data": [1, 2]}, **options),
        "explain": lambda **options: sw.explain(scaled, X, "sum", mesh=MESH, **options),
        "inspect": lambda **options: sw.inspect(scaled, X, "sum", mesh=MESH, **options),
    }
    for call in calls.values():
        with pytest.raises(sw.ArgumentError, match=r"has 'hwo'(.|\n)*did you mean 'how'"):
            call(static_argnames=name)


def test_a_reference_may_have_other_names():
    def reference(x, kind):
        return jnp.sum(x) * kind

    def f(x, times, *, mesh):
        return reduced(x, "sum", mesh=mesh) * times

    options = {"static_argnames": "times", "reference": reference}
    assert sw.check(f, X, 2, mesh={"data": [1, 2]}, **options)


def test_static_names_of_a_function_that_takes_any():
    def f(x, **options):
        return scaled(x, options["how"], mesh=MESH)

    assert_same(sw.simulate(f, static_argnames=("how", "other"))(X, how="sum"), SUMS)


def test_check_and_explain_take_them():
    options = {"static_argnames": "how"}
    assert sw.check(scaled, X, "sum", mesh={"data": [1, 2, 4]}, **options).ok is False
    assert sw.check(reduced, X, "sum", mesh={"data": [1, 2]}, **options)
    report = sw.explain(scaled, X, "max", mesh=MESH, **options)
    assert [use.name for use in report.collectives] == ["pmax"]
    assert [one.path for one in report.arguments] == ["x"]


def test_a_mesh_as_a_positional_argument():
    def f(x, mesh, y):
        return jax.shard_map(jnp.add, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x, y)

    assert_same(sw.simulate(f)(X, MESH, X), X + X)


WORDS = {
    'how is a str\n.*\n.*static_argnames="how"': lambda: sw.simulate(scaled, mesh=MESH)(X, "sum"),
    "fn is a function": lambda: sw.simulate(scaled, mesh=MESH, static_argnums=1)(
        X, "sum", fn=lambda x: x
    ),
    r"tree\['name'\] is a str": lambda: sw.simulate(lambda tree: tree["x"])({"x": X, "name": "a"}),
    "how is a list, which cannot be hashed": lambda: sw.simulate(
        scaled, mesh=MESH, static_argnums=1
    )(X, ["sum"]),
    "static_argnums has 7, and the function has 2": lambda: sw.simulate(
        scaled, mesh=MESH, static_argnums=7
    )(X, "sum"),
    "'how' is of type str": lambda: sw.simulate(scaled, static_argnums=["how"]),
    "1 is of type int": lambda: sw.simulate(scaled, static_argnames=[1]),
    "static in a jit is traced here\n.*\n.*static_argnums": lambda: sw.simulate(
        jax.jit(lambda x, n: x**n, static_argnums=1)
    )(X, 3),
    "static in a jit is traced here.*": lambda: sw.simulate(
        jax.jit(lambda x, n: x**n, static_argnames="n")
    )(X, n=3),
}


@pytest.mark.parametrize("words", WORDS)
def test_what_is_said(words):
    with pytest.raises(sw.ShardwiseError, match=words) as caught:
        WORDS[words]()
    assert isinstance(caught.value, TypeError)


def test_static_arguments_have_places_in_specs():
    def f(x, n, w, *, mesh):
        specs = {"in_specs": (P("data"), P("data")), "out_specs": P("data")}
        return jax.shard_map(lambda x, w: x * n + w, mesh=mesh, **specs)(x, w)

    call = sw.simulate(f, mesh=MESH, static_argnums=1, in_specs=(P("data"), None, P()))
    assert_same(call(X, 2, X), X * 3)


# --- meshes around and inside


def ambient(x):
    return jax.shard_map(lambda x: lax.psum(x, "data"), in_specs=P("data"), out_specs=P())(x)


def handed(x, *, mesh):
    f = jax.shard_map(lambda x: lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
    return f(x)


def set_inside(x, *, mesh):
    with jax.set_mesh(mesh):
        return ambient(x)


def set_for_good(x, *, mesh):
    jax.set_mesh(mesh)
    return ambient(x)


def put_on_it(x, *, mesh):
    return handed(jax.device_put(x, NamedSharding(mesh, P("data"))), mesh=mesh)


def jitted_with_shardings(x, *, mesh):
    spread, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    f = functools.partial(handed, mesh=mesh)
    return jax.jit(f, in_shardings=spread, out_shardings=whole)(x)


def asked_for(x):
    return handed(x, mesh=jax.sharding.get_abstract_mesh())


@pytest.mark.parametrize(
    "f", [ambient, handed, set_inside, set_for_good, put_on_it, jitted_with_shardings, asked_for]
)
def test_a_mesh_of_another_size_around_the_call(f):
    call = sw.simulate(f, mesh=MESH)
    before = jax.sharding.get_abstract_mesh()
    assert_same(call(X), SUMS)
    with jax.set_mesh(real_mesh(data=2)):
        assert_same(call(jnp.asarray(X)), SUMS)
        assert_same(jax.jit(call)(jnp.asarray(X)), SUMS)
        assert dict(jax.sharding.get_abstract_mesh().shape) == {"data": 2}
    assert jax.sharding.get_abstract_mesh() == before


@pytest.mark.parametrize("name", ["data", "other"])
@pytest.mark.parametrize("jit", [False, True], ids=["", "jit"])
def test_derivatives_under_an_explicit_mesh_of_another_size(name, jit):
    """Every array then has that mesh in its type, and the simulated program another one."""
    call = sw.simulate(ambient, mesh=MESH)
    want = jax.grad(lambda x: (call(x) ** 2).sum())(jnp.asarray(X))
    around = jax.make_mesh((2,), (name,), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(around):
        x = jnp.asarray(X)
        slope = jax.grad(lambda x: (call(x) ** 2).sum())
        assert_same((jax.jit(slope) if jit else slope)(x), want)
        out, pull = jax.vjp(call, x)
        assert_same(pull(2 * out)[0], want)
        assert_same(jax.vmap(slope)(jnp.stack([x, x]))[1], want)


def test_set_mesh_is_as_before_elsewhere():
    sw.simulate(set_inside, mesh=MESH)(X)
    with pytest.raises(ValueError, match="Expected mesh of type"):
        jax.set_mesh(MESH)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="outside of"):
        jax.jit(lambda x: set_inside(x, mesh=real_mesh(data=4)))(X)


WITHOUT_DEVICES = {
    "devices": lambda x, mesh: x / mesh.devices.size,
    "local_devices": lambda x, mesh: x / len(mesh.local_devices),
    "local_mesh": lambda x, mesh: x / mesh.local_mesh.size,
    "is_multi_process": lambda x, mesh: x * mesh.is_multi_process,
    "__enter__": lambda x, mesh: mesh.__enter__(),
    "_device_assignment": lambda x, mesh: jax.make_array_from_callback(
        x.shape, NamedSharding(mesh, P("data")), lambda index: X[index]
    ),
    "get_mesh": lambda x, mesh: jax.sharding.get_mesh(),
}


@pytest.mark.parametrize("words", WITHOUT_DEVICES)
def test_what_a_virtual_mesh_does_not_have(words):
    def f(x, *, mesh):
        return WITHOUT_DEVICES[words](x, mesh)

    with pytest.raises(sw.UnsupportedError, match="needs the devices of the mesh") as caught:
        sw.simulate(f, mesh=MESH)(X)
    assert words in str(caught.value)
    assert "mesh.size" in str(caught.value)


def _placed(mesh):
    return NamedSharding(mesh, P("data"))


LOWERED = {
    "compiled": lambda step, x, mesh: jax.jit(step).lower(x).compile()(x),
    "of values": lambda step, x, mesh: jax.jit(step).lower(X).compile()(X),
    "of a shape": lambda step, x, mesh: (
        jax.jit(step).lower(jax.ShapeDtypeStruct(x.shape, x.dtype)).compile()(x)
    ),
    "of a shape that lies somewhere": lambda step, x, mesh: (
        jax.jit(step)
        .lower(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=_placed(mesh)))
        .compile()
        .memory_analysis()
    ),
    "with in_shardings": lambda step, x, mesh: (
        jax.jit(step, in_shardings=_placed(mesh)).lower(x).compile()(x)
    ),
    "as text": lambda step, x, mesh: (
        jax.jit(step, in_shardings=_placed(mesh)).lower(x).as_text() and x
    ),
}


@pytest.mark.parametrize("lowered", LOWERED.values(), ids=LOWERED)
def test_a_program_compiled_inside(lowered):
    def f(x, *, mesh):
        return lowered(functools.partial(handed, mesh=mesh), x, mesh)

    words = r"test_arguments.py:\d+: this lowers or compiles a program"
    with pytest.raises(sw.UnsupportedError, match=words):
        sw.check(f, X, mesh={"data": [4]})


@pytest.mark.parametrize("lies", [lambda mesh: None, _placed])
def test_a_program_exported_inside(lies):
    def f(x, *, mesh):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=lies(mesh))
        return jax.export.export(jax.jit(functools.partial(handed, mesh=mesh)))(shape).call(x)

    with pytest.raises(sw.UnsupportedError, match=r"test_arguments.py:\d+: .*has exported"):
        sw.simulate(f, mesh=MESH)(X)


def test_an_exported_program_of_one_device_runs():
    sine = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((2, 3), jnp.float32))

    def f(x, *, mesh):
        specs = {"in_specs": P("data"), "out_specs": P("data"), "check_vma": False}
        return jax.shard_map(sine.call, mesh=mesh, **specs)(x)

    np.testing.assert_array_equal(sw.simulate(f, mesh=MESH)(X), jnp.sin(X))


PMAPS = {
    "over more than the devices": lambda x: jax.pmap(jnp.sin)(x),
    "of different sizes": lambda x: jax.pmap(jnp.add)(x, x[1:]),
    "of a scalar": lambda x: jax.pmap(jnp.sin)(x[0, 0]),
    "on a mesh": lambda x: jax.pmap(lambda x: lax.psum(x, "data"), axis_name="data")(x[:2]),
}


@pytest.mark.parametrize("case", PMAPS)
def test_a_pmap_is_for_the_devices_of_this_machine(case):
    mesh = MESH if case == "on a mesh" else None
    with pytest.raises(sw.UnsupportedError, match=r"test_arguments.py:\d+: .*pmap") as caught:
        sw.simulate(PMAPS[case], mesh=mesh)(np.ones((99, 98), "f"))
    assert "Remedy: jax.shard_map in place of pmap" in str(caught.value)


def counted(found):
    number = 2 * len(found)
    return number // 2


COUNTS = {
    "jax.device_count()": lambda: jax.device_count(),
    "jax.local_device_count()": lambda: jax.local_device_count(),
    "jax.device_count() by name": lambda: device_count(),
    "len(jax.devices())": lambda: len(jax.devices()),
    "len(jax.devices()) by name": lambda: len(devices()),
    "len(jax.devices()) held": lambda: counted(jax.devices()),
    "len(jax.local_devices())": lambda: len(jax.local_devices()),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_devices_of_this_machine_are_not_those_of_the_mesh(name):
    def f(x, *, mesh):
        return handed(x, mesh=mesh) / COUNTS[name]()

    here, asked = COUNTS[name](), re.escape(name.partition(" ")[0])
    with pytest.raises(sw.UnsupportedError, match=rf"test_arguments.py:\d+: {asked} is {here} "):
        sw.simulate(f, mesh=sw.mesh(data=4))(X)
    with pytest.raises(sw.UnsupportedError, match=r"Remedy: mesh\.size"):
        sw.check(f, X, mesh={"data": [1, 4]})
    whole = sw.simulate(f, mesh=sw.mesh(data=here))(X)
    assert_same(whole * here, sw.simulate(handed, mesh=sw.mesh(data=here))(X))
    assert COUNTS[name]() == here


def refuses(f, words):
    """Every way to run a program refuses it with these words."""
    ways = (
        lambda: sw.simulate(f, mesh=MESH)(X),
        lambda: sw.check(f, X, mesh=[MESH]),
        lambda: sw.explain(f, X, mesh=MESH),
        lambda: sw.prove(f, X, mesh=MESH),
        lambda: sw.inspect(f, X, mesh=MESH),
    )
    for run in ways:
        with pytest.raises(sw.UnsupportedError, match=words):
            run()


COUNTED_OTHERWISE = (
    "len (jax.devices())",
    "len (jax.local_devices())",
    "functools.partial(len, jax.devices())()",
    "len(list(jax.devices()))",
    "len([d for d in jax.devices() if d.id >= 0])",
    "len(jax.devices()[:])",
    "len(jax.tree.leaves(jax.devices()))",
    "jax.devices()[-1].id + 1",
    "len([] + jax.devices())",
    "len(jax.devices().copy())",
    "len(jax.devices() * 1)",
    "sum(1 for _ in jax.devices())",
    "sum(d.platform == 'cpu' for d in jax.devices())",
    "len({d.id for d in jax.devices()})",
    "len([d for d in jax.local_devices() if d.platform == 'cpu'])",
    "(lambda *every: len(every))(*jax.local_devices())",
    "np.array(jax.devices()).size",
    "Mesh(jax.devices(), ('data',)).size",
)


@pytest.mark.parametrize("text", COUNTED_OTHERWISE)
def test_devices_are_counted_in_no_way_and_without_source(text):
    names: dict[str, Any] = {"functools": functools, "jax": jax, "np": np}
    count = eval(f"lambda: {text}", {**names, "Mesh": Mesh})
    here = count()

    def f(x, *, mesh):
        return handed(x, mesh=mesh) / count()

    with pytest.raises(sw.UnsupportedError, match=rf"<string>:1: .* {here} here, and the mesh"):
        sw.simulate(f, mesh=sw.mesh(data=4))(X)
    whole = sw.simulate(f, mesh=sw.mesh(data=here))(X)
    assert_same(whole * here, sw.simulate(handed, mesh=sw.mesh(data=here))(X))
    assert count() == here


def test_every_way_to_run_refuses_to_count_devices():
    refuses(lambda x, *, mesh: x / len([*jax.devices()]), "jax.devices")


@jax.jit
def divided(x):
    return x / jax.device_count()


def test_a_jit_that_was_traced_for_this_machine_is_traced_again():
    divided(X)
    refuses(lambda x, *, mesh: handed(divided(x), mesh=mesh), "device_count")


def test_devices_may_be_asked_for_and_not_counted():
    def f(x, *, mesh):
        assert jax.devices()[0].platform == jax.local_devices()[0].platform
        assert jax.devices()
        assert next(iter(jax.devices())) in jax.devices()
        own = jax.devices()[:1], jax.make_mesh((1,), ("one",))
        return handed(x, mesh=mesh) * len(own)

    assert_same(sw.simulate(f, mesh=MESH)(X), 2 * sw.simulate(handed, mesh=MESH)(X))


OF_DEVICES = {
    "sharding": lambda x: x.sharding,
    "block_until_ready": lambda x: x.block_until_ready(),
    "addressable_shards": lambda x: x.addressable_shards,
    "devices": lambda x: x.devices(),
}


@pytest.mark.parametrize("name", OF_DEVICES)
def test_what_only_arrays_on_devices_have(name):
    def f(x, *, mesh):
        OF_DEVICES[name](handed(x, mesh=mesh))
        return x

    words = rf"test_arguments.py:\d+: this uses {name} of an array"
    with pytest.raises(sw.UnsupportedError, match=words):
        sw.simulate(f, mesh=MESH)(X)


@pytest.mark.parametrize("collective", [lax.all_to_all, lax.psum_scatter])
def test_a_group_without_devices(collective):
    dims = (0, 1) if collective is lax.all_to_all else ()

    def f(x, *, mesh):
        groups = {"axis_index_groups": [[], [0, 1, 2, 3]], "tiled": True}
        body = lambda x: collective(x, "data", *dims, **groups)  # noqa: E731
        specs = {"in_specs": P("data"), "out_specs": P("data"), "check_vma": False}
        return jax.shard_map(body, mesh=mesh, **specs)(x)

    with pytest.raises(sw.ShardingError, match=r"test_arguments.py:\d+: .*group"):
        sw.simulate(f, mesh=MESH)(X)


@pytest.mark.parametrize("dims", [(-2, 0), (0, -1)])
def test_dimensions_of_an_exchange_that_are_counted_from_the_end(dims):
    """As devices have it: newer versions of JAX take them."""

    def f(x, *, mesh):
        specs = {"in_specs": P("data"), "out_specs": P("data"), "check_vma": False}
        body = lambda x: lax.all_to_all(x, "data", *dims)  # noqa: E731
        return jax.shard_map(body, mesh=mesh, **specs)(x)

    x = normal(16, 2)
    try:
        want = f(x, mesh=real_mesh(data=4))
    except AssertionError:
        with pytest.raises(sw.ShardingError, match="from the front"):
            sw.simulate(f, mesh=MESH)(x)
    else:
        assert_same(sw.simulate(f, mesh=MESH)(x), want)


def test_in_a_body_it_is_an_error_of_the_users():
    def f(x, *, mesh):
        body = lambda x: x * len(x.addressable_shards)  # noqa: E731
        return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

    with pytest.raises(jax.errors.ConcretizationTypeError):
        sw.simulate(f, mesh=MESH)(X)


def test_a_function_that_shards_on_a_mesh_of_devices_alone():
    def f(x, *, mesh):
        return handed(x, mesh=mesh) if isinstance(mesh, Mesh) else x

    with pytest.warns(UserWarning, match="AbstractMesh"):
        sw.simulate(f, mesh=MESH)(X)
