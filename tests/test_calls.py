"""Calls that Python refuses, and what is said of them; `tests/test_wrong_calls.py` walks all."""

from __future__ import annotations

import dataclasses
import functools
import gc
import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import shardwise as sw
from shardwise._base.calls import public
from shardwise._base.errors import warn

X = np.arange(8, dtype=np.float32)
MESH = sw.mesh(data=2)


def scaled(x, y, *, mesh=None):
    def body(part):
        return jax.lax.psum(part.sum(), "data")

    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x) * y


def loss(params, batch):
    return (batch - params) ** 2


STEP = sw.data_parallel(loss, optax.sgd(0.1), mesh=MESH)

TOLD = {
    "epochs": (
        lambda: sw.fit(STEP, STEP.init(jnp.ones(())), [X], epochs=3),
        ["sw.fit: there is no argument epochs=", "by name steps=", "steps=epochs * len(batches)"],
    ),
    "no steps": (
        lambda: sw.fit(STEP, STEP.init(jnp.ones(())), [X]),
        ["argument: 'steps'", "sw.fit(step, state, batches, steps=...)"],
    ),
    "no optimizer": (
        lambda: sw.data_parallel(loss),
        [
            "sw.data_parallel: missing a required argument: 'optimizer'",
            "Remedy: sw.data_parallel(loss, optimizer)",
        ],
    ),
    "an optimizer too many": (
        lambda: sw.nnx.data_parallel(loss, optax.sgd(0.1)),
        ["too many positional arguments", "step(model, optimizer, batch)"],
    ),
    "a misspelt name": (
        lambda: sw.check(scaled, X, 1.0, mesh=MESH, refrence=X),
        ["there is no argument refrence=", "did you mean reference=?"],
    ),
    "a keyword of the function": (
        lambda: sw.check(scaled, X, mesh=MESH, y=2.0),
        ["there is no argument y=", "sw.check(functools.partial(f, y=...), ...)"],
    ),
    "devices": (
        lambda: sw.simulate(scaled, devices=8),
        ["there is no argument devices=", "mesh=sw.mesh(data=8)"],
    ),
    "a mesh by position": (
        lambda: sw.simulate(scaled, MESH),
        ["too many positional arguments", "sw.simulate(f, mesh=mesh)(*args)"],
    ),
    "given twice": (
        lambda: sw.evaluate(loss, 1.0, X, data=X),
        ["sw.evaluate: multiple values for argument 'data'", "sw.evaluate(fn, state, data)"],
    ),
    "a step without a batch": (
        lambda: STEP(STEP.init(jnp.ones(()))),
        ["step: missing a required argument: 'batch'", "Remedy: step(state, batch)"],
    ),
    "a method": (
        lambda: sw.explain(scaled, X, 1.0, mesh=MESH).save(),
        ["report.save: missing a required argument: 'path'"],
    ),
    "a class": (lambda: sw.Mean(X, weight=X), ["sw.Mean:", "did you mean weights=?"]),
    "an option of a case": (
        lambda: sw.case(mesh={"data": 2}, refrence=X),
        ["sw.case: there is no argument refrence=", "did you mean reference=?"],
    ),
    "arguments as a tuple": (
        lambda: sw.check(scaled, (X, 1.0), mesh=MESH),
        ["scaled(): it is called with a tuple: missing", "pass them separately, not as one tuple"],
    ),
    "arguments as a tuple, jitted": (
        lambda: sw.prove(jax.jit(scaled, static_argnames="mesh"), (X, 1.0), mesh=MESH),
        ["scaled(): it is called with a tuple", "pass them separately"],
    ),
    "an argument of the function too few": (
        lambda: sw.simulate(scaled, mesh=MESH)(X),
        ["scaled(): it is called with an ndarray: missing", "scaled(x, y, *, mesh=None)"],
    ),
    "an argument of the function too many": (
        lambda: sw.inspect(scaled, X, 1.0, 2.0, mesh=MESH),
        ["scaled(): it is called with an ndarray, a float, a float: too many"],
    ),
}


TIRED = {
    "a list of numbers for an array": (
        lambda: sw.simulate(scaled, mesh=MESH)(X.tolist(), 1.0),
        ["is float32[], of 0 dimensions", "that many scalars", "jnp.asarray(x)"],
    ),
    "a function that returns text": (
        lambda: sw.check(lambda x: "a", X, mesh=MESH),
        ["test_calls.py:", " (<lambda>): the function returns something of type str"],
    ),
    "a reference of other arguments": (
        lambda: sw.check(scaled, X, 1.0, mesh=MESH, reference=lambda x: x),
        ["<lambda>(): it is called with an ndarray, a float: too many", "The reference is"],
    ),
    "shapes to inspect": (
        lambda: sw.inspect(scaled, jax.ShapeDtypeStruct((8,), jnp.float32), 1.0, mesh=MESH),
        ["which has no values", "jnp.ones(x.shape, x.dtype)"],
    ),
    "shapes to simulate": (
        lambda: sw.simulate(scaled, mesh=MESH)(jax.ShapeDtypeStruct((8,), jnp.float32), 1.0),
        ["which has no values", "jax.eval_shape"],
    ),
    "an evaluation without the state": (
        lambda: sw.fit(STEP, STEP.init(jnp.ones(())), [X], steps=1, evaluate=lambda: {"a": 1}),
        ["<lambda>() of evaluate cannot be called with one argument"],
    ),
    "a callback without the row": (
        lambda: sw.fit(STEP, STEP.init(jnp.ones(())), [X], steps=1, callbacks=[lambda: None]),
        ["<lambda>() of callbacks cannot be called with one argument"],
    ),
    "several sizes": (lambda: sw.mesh(data=[1, 2]), ["has size [1, 2]", "sw.check and sw.prove"]),
    "sizes as text": (
        lambda: sw.check(scaled, X, 1.0, mesh={"data": "1,2"}),
        ["has size '1,2'", "data=[1,2], without quotes"],
    ),
    "a size with a point": (lambda: sw.mesh(data=2.0), ["has size 2.0", "Remedy: data=2"]),
    "the mesh among the arguments": (
        lambda: sw.check(scaled, X, 1.0, MESH),
        ["the mesh is passed by position", "mesh={"],
    ),
    "nothing to train": (lambda: STEP.init(None), ["there are no arrays in it (a NoneType)"]),
    "progress as text": (
        lambda: sw.evaluate(loss, 1.0, X, progress="yes"),
        ["progress is a str", "a function that takes snapshots"],
    ),
    "jit with specs for a mesh that is not around it": (
        lambda: sw.simulate(
            lambda x, *, mesh: jax.jit(jnp.sum, in_shardings=P("data"))(x), mesh=MESH
        )(X),
        ["a PartitionSpec is passed here", "jax.NamedSharding(mesh, spec)"],
    ),
}


@pytest.mark.parametrize("call", TIRED)
def test_what_a_tired_user_gives_is_told_in_words(call):
    run, words = TIRED[call]
    with pytest.raises(sw.ShardwiseError) as found:
        run()
    assert [word for word in words if word not in str(found.value)] == [], str(found.value)


def test_a_name_that_is_nearly_there():
    with pytest.raises(AttributeError) as found:
        sw.chek  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    assert (found.value.name, found.value.obj) == ("chek", sw)


@pytest.mark.parametrize("call", TOLD)
def test_a_call_that_python_refuses_is_told_in_words(call):
    run, words = TOLD[call]
    with pytest.raises(sw.ArgumentError) as found:
        run()
    assert isinstance(found.value, TypeError)
    assert [word for word in words if word not in str(found.value)] == [], str(found.value)


def test_errors_of_the_users_own_code_stay_as_they_are():
    def helper(a, b):
        return a

    def calls_wrongly(x, *, mesh=None):
        return helper(x)

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'") as found:
        sw.check(calls_wrongly, X, mesh=MESH)
    assert not isinstance(found.value, sw.ShardwiseError)


def test_a_decorator_that_gives_an_argument_itself_is_not_blamed():
    @functools.wraps(scaled)
    def doubled(x, **options):
        return scaled(x, 2.0, **options)

    assert sw.check(doubled, X, mesh={"data": [1, 2]})


def test_what_is_raised_inside_goes_through():
    @public("sw.f")
    def f(x):
        raise TypeError("f() missing 1 required positional argument: 'x'")

    with pytest.raises(TypeError, match="missing 1") as found:
        f(1)
    assert not isinstance(found.value, sw.ShardwiseError)


@pytest.mark.parametrize(
    "f", [sw.check, sw.prove, sw.simulate, sw.evaluate, sw.fit, sw.data_parallel, sw.Mean, STEP]
)
def test_signatures_and_documentation_are_those_of_the_function(f):
    assert not any(one.kind is one.VAR_KEYWORD for one in inspect.signature(f).parameters.values())
    assert inspect.getdoc(f)


def test_what_is_made_is_what_it_was():
    mean = sw.Mean(X, weights=X)
    assert dataclasses.replace(mean, weights=None) == sw.Mean(mean.values)
    assert jax.tree.structure(mean).num_leaves == 2


def test_a_warning_is_about_the_line_that_called_us():
    @public("sw.f")
    def f():
        warn("look here")

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        f()
    assert [(one.filename, str(one.message)) for one in found] == [(__file__, "look here")]


def single(x, *, mesh):
    return jax.shard_map(lambda x: x.sum(), mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def looks_up(params, *, mesh):
    return single(params["w"], mesh=mesh)


@pytest.mark.parametrize("f", [single, looks_up])
@pytest.mark.parametrize("call", [sw.check, sw.prove, sw.explain, sw.inspect])
def test_arguments_as_one_tuple_are_told_beside_the_error_of_the_function(f, call):
    with pytest.raises((AttributeError, TypeError), match="tuple") as caught:
        call(f, (X, X), mesh=MESH)
    notes = caught.value.__notes__
    assert any("one argument, a tuple of 2" in note for note in notes)


def test_an_error_about_something_else_has_no_such_note():
    with pytest.raises(AttributeError) as caught:
        sw.check(lambda x, *, mesh: x[0].nothing, (X, X), mesh=MESH)
    notes = getattr(caught.value, "__notes__", [])
    assert not any("one argument" in note for note in notes)


def later(kind):
    async def coroutine(x, *, mesh=None):
        return x

    async def async_generator(x, *, mesh):
        yield x

    def generator(x, *, mesh):
        yield x

    def expression(x, *, mesh):
        return (row for row in x)

    return locals()[kind]


@pytest.mark.parametrize("kind", ["coroutine", "async_generator", "generator", "expression"])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_function_of_which_a_call_runs_nothing(kind):
    f = later(kind)
    with pytest.raises(sw.ArgumentError) as refused:
        sw.check(f, X, mesh=MESH)
    place = f"test_calls.py:{f.__code__.co_firstlineno} ({kind}): the function returns something of"
    given = kind if kind in ("coroutine", "async_generator") else "generator"
    assert f"{place} type {given}\n" in str(refused.value)
    assert "Remedy: use def and return instead of" in str(refused.value)
    gc.collect()  # where Python would warn of what nobody has awaited


def test_a_result_that_is_too_large_a_number():
    with pytest.raises(sw.ArgumentError, match=r"\(<lambda>\): the .* of type int: .* too large"):
        sw.check(lambda x, *, mesh: 2**70, X, mesh=MESH)


def test_an_array_of_jax_is_called_an_array():
    with pytest.raises(sw.ArgumentError, match=r"it is called with an array, an array: too many"):
        sw.simulate(lambda x, *, mesh: x, mesh=MESH)(jnp.ones(8), jnp.ones(8))
