"""Misuse reads well: each message has the facts that somebody needs to act on it.

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
from shardwise._base.errors import notes_of, noting, warn

HERE = Path(__file__).name
X = jnp.ones((12, 4))


DATA = P("data")


def step(in_specs=DATA, out_specs=DATA, body=lambda *xs: xs[0]):
    def f(*args, mesh):
        return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs)(*args)

    return f


def message(f, *args, mesh=None, **options):
    """The text of the ShardingError, which is a ValueError as well."""
    with pytest.raises(sw.ShardingError) as caught:
        sw.simulate(f, mesh=mesh or sw.mesh(data=8, model=2), **options)(*args)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, sw.ShardwiseError)
    return str(caught.value)


def assert_facts(text, *facts):
    for fact in facts:
        assert re.search(fact, text), f"{fact!r} is not in:\n{text}"


# --- arrays that do not divide


def test_a_dimension_that_does_not_divide():
    text = message(step(), X)
    assert_facts(text, r"args\[0\]|argument 0", r"dimension 0", r"\b12\b", r"'data'", r"\b8\b")
    assert_facts(text, r"\b8 or 16\b", HERE)


def test_a_later_argument_and_dimension_that_does_not_divide():
    def body(first, second):
        return first

    f = step((P("data"), P(None, "model")), body=body)
    text = message(f, jnp.ones((8, 2)), jnp.ones((3, 5)))
    assert_facts(text, "second", r"dimension 1", r"\b5\b", "'model'", r"\b2\b", r"\b4 or 6\b")
    assert "first of shape" not in text


def test_a_dimension_split_over_two_axes():
    text = message(step(P(("data", "model")), P(("data", "model"))), X)
    assert_facts(text, r"\b12\b", "'data'", "'model'", r"\b16\b")
    assert not re.search(r"\b0 or 16\b", text)


def test_a_dimension_smaller_than_the_axis_offers_no_zero():
    text = message(step(), jnp.ones((3,)))
    assert_facts(text, r"\b3\b", r"\b8\b")
    assert not re.search(r"\b0 or 8\b", text)


def test_every_argument_that_does_not_divide_is_named():
    text = message(step((P("data"), P("model"))), X, jnp.ones(7))
    assert_facts(text, r"args\[0\]|argument 0", r"args\[1\]|argument 1", r"\b12\b", r"\b7\b")


def test_a_leaf_of_a_tree_is_named_by_its_path():
    text = message(step(), {"w": jnp.ones(8), "b": jnp.ones(5)})
    assert_facts(text, r"\['b'\]", r"\b5\b")


# --- axes that are not on the mesh


@pytest.mark.parametrize(
    ("wrong", "meant"), [("dat", "data"), ("Data", "data"), ("modle", "model")]
)
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_collective_over_an_axis_that_is_not_there(wrong, meant, check_vma):
    def f(x, *, mesh):
        body = lambda x: lax.psum(x, wrong)  # noqa: E731
        specs = {"in_specs": P("data"), "out_specs": P()}
        return jax.shard_map(body, mesh=mesh, check_vma=check_vma, **specs)(x)

    text = message(f, jnp.ones(8))
    assert_facts(text, repr(wrong), f"did you mean {meant!r}", "'data'", "'model'", HERE)


@pytest.mark.parametrize(
    "collective",
    [
        lambda x: lax.pmax(x, "dta"),
        lambda x: lax.all_gather(x, "dta"),
        lambda x: lax.ppermute(x, "dta", [(0, 1)]),
        lambda x: lax.all_to_all(x, "dta", 0, 0),
        lambda x: lax.psum_scatter(x, "dta"),
        lambda x: x * lax.axis_index("dta"),
        lambda x: x * lax.axis_size("dta"),
        lambda x: lax.psum(x, ("data", "dta")),
    ],
    ids=["pmax", "all_gather", "ppermute", "all_to_all", "psum_scatter", "index", "size", "tuple"],
)
def test_every_collective_over_an_axis_that_is_not_there(collective):
    text = message(step(body=collective), jnp.ones(8))
    assert_facts(text, "'dta'", "did you mean 'data'")


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize(
    "collective",
    [
        lambda x, tiled: lax.all_to_all(x, "data", 1, 0, tiled=tiled),
        lambda x, tiled: lax.psum_scatter(x, "data", scatter_dimension=1, tiled=tiled),
    ],
    ids=["all_to_all", "psum_scatter"],
)
def test_tiled_is_no_remedy_where_it_is_given(collective, tiled):
    text = message(step(body=lambda x: collective(x, tiled)), jnp.ones((8, 3)))
    assert ("Remedy: pad or trim" if tiled else "Remedy: tiled=True; and pad") in text


def test_a_collective_over_an_axis_along_which_nothing_differs():
    text = message(step(P("data"), P(), body=lambda x: lax.psum(x, ("data", "model"))), jnp.ones(8))
    assert_facts(
        text,
        HERE,
        r"psum over 'data', 'model' of a value \(float32\[",
        "differs along 'data' but is the same along 'model'",
        r"Remedy: name only the axes along which it differs: jax.lax.psum\(x, 'data'\)\.",
    )


@pytest.mark.parametrize("specs", [(P("dat"), P("data")), (P("data"), P("dat"))], ids=["in", "out"])
def test_a_spec_with_an_axis_that_is_not_there(specs):
    text = message(step(*specs), jnp.ones(8))
    assert_facts(text, "'dat'", "did you mean 'data'", "'model'")


def test_an_axis_that_is_like_none_there_gets_no_hint():
    text = message(step(body=lambda x: lax.psum(x, "pipeline")), jnp.ones(8))
    assert_facts(text, "'pipeline'", "'data'", "'model'")
    assert "did you mean" not in text


# --- specs


def test_too_many_specs():
    text = message(step((P("data"), P(), P()), body=lambda x, y: x), jnp.ones(8), jnp.ones(2))
    assert_facts(text, "in_specs", r"\b3\b", r"\b2\b", HERE)


def test_too_few_specs():
    text = message(step((P("data"),), body=lambda x, y: x), jnp.ones(8), jnp.ones(2))
    assert_facts(text, "in_specs", r"\b1\b", r"\b2\b")


def test_wrong_number_of_output_specs():
    text = message(step(P("data"), (P("data"), P())), jnp.ones(8))
    assert_facts(text, "out_specs")


def test_a_spec_longer_than_the_array():
    text = message(step(P("data", None, "model")), jnp.ones(8))
    assert_facts(text, "rank|dimension", r"\b1\b", r"\b3\b")


def test_an_axis_twice_in_a_spec():
    with pytest.raises(ValueError, match="data"):
        sw.simulate(step(P("data", "data")), mesh=sw.mesh(data=2))(jnp.ones((4, 4)))


def test_a_result_that_is_not_replicated():
    text = message(step(out_specs=P(), body=lambda x: x.sum()), jnp.ones(8))
    assert_facts(text, "data", HERE)


AROUND = {
    "nothing": lambda f: f,
    "grad": lambda f: jax.grad(lambda x: jnp.sum(f(x))),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x])),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    ("spec", "facts"),
    [(P(), ("P()", "'data'", "pmean")), (P("data"), ("P('data'", "float32[", "x[None]"))],
    ids=["not replicated", "no dimension"],
)
def test_a_result_that_does_not_fit_its_spec_under_a_transformation(spec, facts, around, jit):
    def f(x, *, mesh):
        run = step(DATA, spec, lambda x: jnp.mean(jnp.sin(x)))
        whole = AROUND[around](functools.partial(run, mesh=mesh))
        return (jax.jit(whole) if jit else whole)(x)

    text = message(f, jnp.ones(8), mesh=sw.mesh(data=8))
    for fact in (HERE, "out_specs", *facts):
        assert fact in text


def test_a_number_of_pythons_as_a_tangent():
    def f(x, *, mesh):
        run = functools.partial(step(P(), P(), lambda x: lax.psum(x * x, "data")), mesh=mesh)
        return jax.jvp(run, (x,), (1.0,))

    with pytest.raises(sw.UnsupportedError, match=rf"{HERE}.*1\.0.*(?s:.*)jnp\.asarray\(1\.0\)"):
        sw.simulate(f, mesh=sw.mesh(data=4))(2.5)


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


# --- whose error it is


def counted(fail):
    """A program that fails in its own way, and how often it was run."""
    calls = []

    def f(x, *, mesh):
        def body(x):
            calls.append(1)
            return fail(x)

        specs = {"in_specs": P("data"), "out_specs": P("data")}
        return jax.shard_map(body, mesh=mesh, **specs)(x)

    return f, calls


def raising(error):
    def fail(x):
        axis_name = axes = "heads"  # noqa: F841
        raise error

    return fail


def asserting(x):
    axes = ("heads",)
    assert x.shape == axes, "mine"


def branching(x):
    return x if x.sum() > 0 else -x


def converting(x):
    return x * float(x.sum())


OWN = {
    "my shard_map helper wants 3 heads": (
        ValueError,
        raising(ValueError("my shard_map helper wants 3 heads")),
    ),
    "unbound axis name: heads": (NameError, raising(NameError("unbound axis name: heads"))),
    "context mesh cannot be empty": (TypeError, raising(TypeError("context mesh cannot be empty"))),
    "mine": (AssertionError, asserting),
    "boolean conversion": (jax.errors.TracerBoolConversionError, branching),
    "float": (jax.errors.ConcretizationTypeError, converting),
    "not found": (KeyError, raising(KeyError("not found"))),
}


@pytest.mark.parametrize("words", OWN)
@pytest.mark.parametrize(
    "run",
    [
        lambda f: sw.simulate(f, mesh=sw.mesh(data=2))(jnp.ones(8)),
        lambda f: sw.check(f, jnp.ones(8), mesh={"data": [1, 2]}),
        lambda f: sw.explain(f, jnp.ones(8), mesh=sw.mesh(data=2)),
        lambda f: jax.jit(sw.simulate(f, mesh=sw.mesh(data=2)))(jnp.ones(8)),
    ],
    ids=["simulate", "check", "explain", "jit"],
)
def test_errors_of_the_user_stay_theirs(words, run):
    error, fail = OWN[words]
    f, calls = counted(fail)
    with pytest.raises(error, match=words) as caught:
        run(f)
    assert type(caught.value) is error
    assert not isinstance(caught.value, sw.ShardwiseError)
    assert len(calls) == 1


WAYS = {
    "simulate": lambda f: sw.simulate(f, mesh=sw.mesh(data=2))(jnp.ones(8)),
    "check": lambda f: sw.check(f, jnp.ones(8), mesh={"data": [1, 2]}),
    "explain": lambda f: sw.explain(f, jnp.ones(8), mesh=sw.mesh(data=2)),
    "prove": lambda f: sw.prove(f, jnp.ones(8), mesh={"data": [1, 2]}),
    "inspect": lambda f: sw.inspect(f, jnp.ones(8), mesh=sw.mesh(data=2)),
}


class Unsaid(Exception):
    """Fails to say what it is about."""

    def __str__(self):
        return "in layer " + 3  # pyright: ignore[reportOperatorIssue]


@pytest.mark.parametrize("run", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("kind", [Exception, TypeError, AttributeError, ValueError])
def test_an_error_that_cannot_say_what_it_is_stays_the_users(kind, run):
    own = type("Own", (Unsaid, kind), {})
    with pytest.raises(own) as caught:
        run(counted(raising(own()))[0])
    assert type(caught.value) is own


class Ending(TypeError):
    """Ends the process where it is printed."""

    def __str__(self):
        raise SystemExit(3)


@pytest.mark.parametrize("run", WAYS.values(), ids=WAYS)
def test_an_error_that_ends_the_process_where_it_is_printed_stays_the_users(run):
    with pytest.raises(Ending):
        run(counted(raising(Ending()))[0])


def test_an_error_that_takes_no_notes():
    one = ValueError("theirs")
    one.__notes__ = ("not a list",)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="theirs"), noting("reading"):
        raise one
    assert notes_of(one, "shardwise: ") == []
    with pytest.raises(ValueError, match="theirs") as caught, noting("reading"):
        raise ValueError("theirs")
    assert notes_of(caught.value, "shardwise: ") == ["while reading"]


LIBRARY = """
import jax

def mean_over(x, axis_name):
    assert x.ndim == 2, "mean_over wants a matrix"
    return jax.lax.pmean(x, axis_name)

def heads(x, axis_name):
    raise ValueError("unbound axis name: heads")

def share(x, axis_name):
    return x / jax.device_count()
"""
RAISED = {
    "mean_over": (AssertionError, "wants a matrix"),
    "heads": (ValueError, "unbound axis name: heads"),
    "share": (sw.UnsupportedError, r"device_count\(\) is"),
}


@pytest.mark.parametrize("run", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("name", RAISED)
def test_a_package_whose_name_begins_like_that_of_jax_is_not_jax(name, run):
    library, (kind, words) = {}, RAISED[name]
    file = Path(jax.__file__).parents[1] / "jaxfoo" / "__init__.py"
    exec(compile(LIBRARY, str(file), "exec"), library)
    with pytest.raises(kind, match=words) as caught:
        run(counted(lambda x: library[name](x, "data"))[0])
    assert type(caught.value) is kind


def test_a_folder_whose_name_begins_like_ours_is_the_users():
    own: dict[str, object] = {"lax": lax, "warn": warn}
    file = f"{Path(sw.__file__).parent}_examples/model.py"
    exec(compile("def body(x):\n  return lax.psum(x, 'dat')", file, "exec"), own)
    assert_facts(message(step(body=own["body"]), jnp.ones(8)), r"model\.py:2: ")
    with pytest.warns(UserWarning, match="so") as caught:
        exec(compile("warn('so')", file, "exec"), own)
    assert caught[0].filename == file


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(
    "collective",
    [
        lambda x: lax.psum(x, "data"),
        lambda x: lax.pmean(x, "data"),
        lambda x: x * lax.axis_index("data").astype(x.dtype),
        lambda x: lax.all_gather(x, "data"),
        lambda x: lax.ppermute(x, "data", [(0, 1)]),
    ],
)
def test_a_collective_outside_every_shard_map(collective, check_vma):
    def f(x, *, mesh):
        specs = {"in_specs": P("data"), "out_specs": P("data"), "check_vma": check_vma}
        return collective(jax.shard_map(jnp.sin, mesh=mesh, **specs)(x))

    with pytest.raises(sw.ShardingError) as caught:
        sw.simulate(f, mesh=sw.mesh(data=2))(jnp.ones(8))
    assert_facts(
        str(caught.value),
        "a collective over 'data' is outside every shard_map",
        "Remedy: move it into",
    )
    assert "did you mean" not in str(caught.value)


def test_a_collective_over_an_axis_that_is_not_manual():
    def f(x, *, mesh):
        options = {"in_specs": P("data"), "out_specs": P("data"), "axis_names": {"data"}}
        return jax.shard_map(lambda x: lax.psum(x, "model"), mesh=mesh, **options)(x)

    with pytest.raises(sw.ShardingError) as caught:
        sw.simulate(f, mesh=sw.mesh(data=2, model=2))(jnp.ones(8))
    assert_facts(str(caught.value), "not manual over 'model'", "axis_names")


def test_tracebacks_end_in_the_users_code():
    f, _ = counted(asserting)
    with pytest.raises(AssertionError) as caught:
        sw.simulate(f, mesh=sw.mesh(data=2))(jnp.ones(8))
    files = [entry.path.name for entry in caught.traceback]
    assert files[-1] == "test_messages.py"
    assert "shard_map.py" not in files


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
