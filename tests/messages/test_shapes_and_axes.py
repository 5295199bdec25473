"""Messages about shapes, axes and specs: each has the facts that somebody needs to act on it.

The tests name the facts, not the wording.
"""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

from .support import DATA, STEP, X, assert_facts, message, step

HERE = Path(__file__).name


# --- arrays that do not divide


def test_a_dimension_that_does_not_divide():
    text = message(step(), X)
    assert_facts(text, r"args\[0\]|argument 0", r"dimension 0", r"\b12\b", r"'data'", r"\b8\b")
    assert_facts(text, r"\b8 or 16\b", STEP)


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
    assert_facts(text, "in_specs", r"\b3\b", r"\b2\b", STEP)


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
    assert_facts(text, "data", STEP)


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
    for fact in (STEP, "out_specs", *facts):
        assert fact in text


def test_a_number_of_pythons_as_a_tangent():
    def f(x, *, mesh):
        run = functools.partial(step(P(), P(), lambda x: lax.psum(x * x, "data")), mesh=mesh)
        return jax.jvp(run, (x,), (1.0,))

    with pytest.raises(sw.UnsupportedError, match=rf"{STEP}.*1\.0.*(?s:.*)jnp\.asarray\(1\.0\)"):
        sw.simulate(f, mesh=sw.mesh(data=4))(2.5)
