"""Messages about meshes, and about a mesh that is missing.

The tests name the facts, not the wording.
"""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import shardwise as sw

from .support import DATA, X, assert_facts, message, step

HERE = Path(__file__).name


# --- meshes


frozen = jax.shard_map(lambda x: lax.psum(x, "data"), in_specs=P("data"), out_specs=P())


def test_a_mesh_frozen_by_a_call_on_real_devices():
    def f(x):
        return frozen(x)

    x = jnp.arange(8.0)
    np.testing.assert_array_equal(sw.simulate(f, mesh=sw.mesh(data=2))(x), x[:4] + x[4:])
    with jax.set_mesh(Mesh(np.array(jax.devices()[:2]), ("data",))):
        frozen(x)  # JAX keeps this mesh
    with pytest.raises(sw.ShardingError) as caught:
        sw.simulate(f, mesh=sw.mesh(data=4))(x)
    assert_facts(str(caught.value), "first call", "mesh=", HERE)


def test_no_mesh_at_all():
    def f(x):
        return jax.shard_map(lambda x: x, in_specs=P("data"), out_specs=P("data"))(x)

    with pytest.raises(sw.ShardingError) as caught:
        sw.simulate(f)(jnp.ones(8))
    assert_facts(str(caught.value), "mesh", r"sw\.mesh")


@pytest.mark.parametrize("mesh", [{"data": 8}, sw.mesh(data=8)], ids=["sizes", "mesh"])
def test_specs_that_are_inferred_on_auto_axes(mesh):
    def program(x):
        return jax.shard_map(lambda x: lax.pmean(x, "data"), out_specs=P())(x)

    x = jnp.arange(16.0)
    with pytest.raises(sw.ShardingError) as caught:
        sw.simulate(program, mesh=mesh, in_specs=(P("data"),))(x)
    assert_facts(str(caught.value), "has no in_specs", "Explicit", "axis_types=", HERE)
    explicit = jax.sharding.AbstractMesh(
        (8,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,)
    )
    sw.simulate(program, mesh=explicit, in_specs=(P("data"),))(x)


@pytest.mark.parametrize("size", [0, -1, 2.5, "two", None, True])
def test_axis_sizes_that_are_none(size):
    with pytest.raises(sw.ShardingError) as caught:
        sw.mesh(data=4, model=size)
    assert_facts(str(caught.value), "'model'", re.escape(repr(size)), "positive integer")


def test_a_whole_size_of_another_integer_type():
    assert dict(sw.mesh(data=np.int64(4)).shape) == {"data": 4}


def test_no_axes():
    with pytest.raises(sw.ShardingError, match="axis"):
        sw.mesh()


def test_an_axis_given_twice():
    with pytest.raises(sw.ShardingError) as caught:
        sw.mesh({"data": 4}, data=2)
    assert_facts(str(caught.value), "'data'", "twice", "4", "2")


@pytest.mark.parametrize("mesh", [8, {"data": [8]}, "data", ("data", 8)])
def test_a_mesh_that_is_none(mesh):
    with pytest.raises((sw.ShardingError, TypeError)) as caught:
        sw.simulate(step(), mesh=mesh)(jnp.ones(8))
    assert_facts(str(caught.value), "mesh", r"sw\.mesh")


# --- no mesh, or another one


def sum_of_all(x, *, mesh):
    return jax.shard_map(lambda x: lax.psum(x, "data"), mesh=mesh, in_specs=DATA, out_specs=P())(x)


@pytest.mark.parametrize("called", [sw.check, sw.prove, sw.explain, sw.inspect])
def test_a_mesh_that_is_needed_and_not_named(called):
    with pytest.raises(sw.ArgumentError) as caught:
        called(sum_of_all, X)
    assert isinstance(caught.value, TypeError)
    compares = called in (sw.check, sw.prove)
    where = rf"^sw\.{called.__name__}: mesh= is missing" if compares else r"^sum_of_all\(\): .*mesh"
    assert_facts(str(caught.value), where, "mesh", "Remedy: ", "mesh=")


def test_a_mesh_by_position_is_none_that_is_missing():
    def total(x, mesh):
        return sum_of_all(x, mesh=mesh)

    found = sw.simulate(total, static_argnums=1)(X, sw.mesh(data=2))
    assert found.shape == (6, 4)


def test_a_mesh_that_a_decorator_names_is_none_that_is_missing():
    @functools.wraps(sum_of_all)
    def decorated(*args, **kwargs):
        return sum_of_all(*args, mesh=sw.mesh(data=2), **kwargs)

    assert sw.simulate(decorated)(X).shape == (6, 4)


@pytest.mark.parametrize("called", [sw.check, sw.prove, sw.explain])
def test_a_decorator_that_does_not_say_what_it_wraps(called):
    def timed(f):
        def wrapper(*args, **kwargs):
            return f(*args, **kwargs)

        return wrapper

    with pytest.raises(sw.ArgumentError) as caught:
        called(timed(sum_of_all), X, mesh={"data": 2})
    assert_facts(str(caught.value), r"^wrapper\(\)", "mesh", "functools.wraps")
    assert sw.simulate(functools.wraps(sum_of_all)(timed(sum_of_all)), mesh={"data": 2})(X).size


def test_a_mesh_that_is_read_from_any_keywords():
    def f(x, **options):
        return sum_of_all(x, mesh=options["mesh"])

    with pytest.raises(sw.ArgumentError) as caught:
        sw.check(f, X, mesh={"data": 2})
    assert_facts(str(caught.value), r"^f\(\)", "KeyError", "a parameter mesh")
    assert sw.simulate(f)(X, mesh=sw.mesh(data=2)).size


@pytest.mark.parametrize("called", [sw.check, sw.prove, sw.explain])
def test_a_mesh_of_its_own_in_a_program_that_is_handed_one(called):
    own = sw.mesh(data=4)

    def f(x, *, mesh):
        return sum_of_all(x, mesh=own)

    with pytest.raises(sw.ShardingError) as caught:
        called(f, X, mesh={"data": 2})
    assert_facts(str(caught.value), HERE, "mesh of its own", r"'data': 4", r"'data': [12]")


@pytest.mark.parametrize("called", [sw.check, sw.prove])
def test_a_shard_map_bound_to_its_mesh_is_named_by_its_line(called):
    def body(x):  # the line that is named
        return lax.psum(x, "data")

    bound = jax.shard_map(body, mesh=sw.mesh(data=2), in_specs=DATA, out_specs=P())
    with pytest.raises(sw.ShardingError) as caught:
        called(bound, X, mesh={"data": [1, 4]})
    line = body.__code__.co_firstlineno
    assert_facts(str(caught.value), rf"^{HERE}:{line}: this shard_map is bound", "check and prove")


def test_a_shard_map_bound_to_its_mesh_is_named_where_it_is_called():
    bound = jax.shard_map(lambda x: x, mesh=sw.mesh(data=2), in_specs=DATA, out_specs=DATA)

    def outer(x):
        return bound(x)

    text = message(outer, X, mesh=sw.mesh(data=4))
    assert_facts(text, rf"^{HERE}:{outer.__code__.co_firstlineno + 1}: this shard_map is bound")


def test_a_cast_that_is_refused_for_another_reason_keeps_the_words_of_jax():
    """Nothing of the value is the same along the axes, so nothing is said of that."""

    def f(x, *, mesh):
        def body(x):
            return jax.lax.pcast(x, ("x", "y"), to="unreduced")

        return jax.shard_map(body, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"))(x)

    with pytest.raises(ValueError) as caught:
        sw.simulate(f, mesh=sw.mesh(x=2, y=2))(jnp.ones((4, 4)))
    assert "the same along" not in str(caught.value)


# --- the call itself


@pytest.mark.parametrize("at_once", [0, -1, 1.5, "fast", None, True])
def test_at_once_that_is_no_count(at_once):
    with pytest.raises(sw.ShardingError) as caught:
        sw.simulate(step(), mesh=sw.mesh(data=2), at_once=at_once)
    assert_facts(str(caught.value), "at_once", re.escape(repr(at_once)), "auto", "positive")


def test_what_is_not_a_function():
    with pytest.raises(TypeError, match="function"):
        sw.simulate(jnp.ones(3), mesh=sw.mesh(data=2))


def test_errors_of_the_program_pass_unchanged():
    def body(x):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        sw.simulate(step(body=body), mesh=sw.mesh(data=2))(jnp.ones(8))


def test_shape_errors_of_the_body_pass_unchanged():
    with pytest.raises(TypeError, match="incompatible shapes"):
        sw.simulate(step(body=lambda x: x + jnp.ones(7)), mesh=sw.mesh(data=2))(jnp.ones(8))


# --- the first hour


@pytest.mark.parametrize(
    ("value", "facts"),
    [
        (np.array([[1, 2], [3]], dtype=object), ["dtype object", r"shape \[2\]", "np.stack"]),
        (np.array(["a", "b"]), ["dtype <U1", "integers or floats"]),
        (np.array(["2026-11-18"], dtype="datetime64[D]"), [r"dtype datetime64\[D\]"]),
    ],
)
def test_arrays_of_what_is_no_number(value, facts):
    with pytest.raises(TypeError) as caught:
        sw.simulate(lambda x: x, mesh=sw.mesh(data=2))(value)
    assert_facts(str(caught.value), "x is a NumPy array", *facts)
    assert "static" not in str(caught.value)


def test_a_simulated_function_says_what_it_is():
    def total(x):
        return x.sum()

    made = sw.simulate(total, mesh=sw.mesh(data=2, model=4))
    assert repr(made) == "sw.simulate(total, mesh={'data': 2, 'model': 4})"
    assert repr(sw.simulate(total)) == "sw.simulate(total)"
    assert getattr(made, "__name__", "") == "total"
    again = sw.simulate(sw.simulate(total))
    assert float(again(np.ones(3, np.float32))) == 3.0


def test_a_simulated_method_is_bound():
    class Model:
        scale = 2.0

        @sw.simulate
        def run(self, x):
            return x * 2.0

    made = Model().run
    assert made.__func__ is Model.run


@pytest.mark.parametrize(
    ("lines", "words"),
    [([5], "on line 5."), ([5, 7], "on lines 5, 7."), ([], "No line of the program is known.")],
)
def test_one_line_is_no_lines(lines, words):
    from shardwise._analysis.inspect.data import _lines_text

    assert _lines_text(lines).endswith(words)


def test_a_mesh_with_a_colon_is_answered_with_the_right_one():
    from shardwise._cli.select import parse_mesh

    with pytest.raises(sw.ShardingError) as caught:
        parse_mesh("data:2,model:4")
    assert_facts(str(caught.value), "'data:2' has a colon", "--mesh data=2,model=4")
