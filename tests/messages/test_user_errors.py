"""Errors of the user's own code pass unchanged; errors of JAX end at the user's line.

The tests name the facts, not the wording.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise._base.errors import notes_of, noting, warn

from .support import assert_facts, message, step

HERE = Path(__file__).name


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
    assert files[-1] == HERE
    assert "shard_map.py" not in files
