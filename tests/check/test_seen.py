"""Data that says nothing is said to say nothing; where there is none, it is drawn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import P, lax

import shardwise as sw
from tests.support import check, normal

MESH = {"data": [1, 2]}
Shape = jax.ShapeDtypeStruct


def split(body, in_specs=P("data"), **options):  # noqa: B008
    def program(*args, mesh):
        specs = {"in_specs": in_specs, "out_specs": P(), **options}
        return jax.shard_map(body, mesh=mesh, **specs)(*args)

    return program


def total(x):
    return lax.psum(x.sum(0), "data")


def codes(verdict):
    return {f.code for f in verdict.findings}


# --- what could not be seen


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (jnp.zeros(8), {"SW503", "SW504"}),
        (jnp.ones(8), {"SW504"}),
        (jnp.asarray([0.0, 1, 2, 3, 0, 1, 2, 3]), {"SW504"}),
        (jnp.full(8, jnp.nan), {"SW503", "SW504"}),
        (jnp.full(8, jnp.inf), {"SW503", "SW504"}),
        (jnp.asarray([0, 1, 2, -jnp.inf, 4, 5, 6, 7]), {"SW503"}),
        (jnp.asarray([0, 1, 2, jnp.nan, 4, 5, 6, 7]), {"SW503"}),
        (jnp.ones(8, int), {"SW504"}),
        (jnp.arange(8.0), set()),
        (jnp.arange(8), set()),
    ],
)
def test_data_that_says_nothing(x, expected):
    verdict = check(split(total), x, mesh=MESH)
    assert verdict.ok
    assert codes(verdict) == expected
    assert ("passed a weak test" in str(verdict)) == bool(expected)
    assert "may be right" not in str(verdict)


def test_zeros_among_other_results_are_no_matter():
    """A first state of an optimizer is zero, and so is the bias that has not been trained."""
    body = lambda x, m: (total(x), m * 0.9)  # noqa: E731
    assert not check(
        split(body, in_specs=(P("data"), P())), normal(8), np.zeros(3, "f"), mesh=MESH
    ).findings


def test_nan_in_one_of_several_results_is_named():
    body = lambda x: {"loss": total(x), "norm": total(x) * jnp.nan}  # noqa: E731
    verdict = check(split(body), normal(8), mesh=MESH)
    (finding,) = verdict.findings
    assert "result['norm'] is NaN everywhere" in finding.message


def test_nan_in_some_elements_is_named_and_a_mask_is_not():
    x = jnp.asarray(normal(8, 2))
    verdict = check(split(total), x.at[3, 1].set(jnp.nan), mesh=MESH)
    (finding,) = verdict.findings
    assert "result is NaN in some of its elements: nothing could be seen of them" in finding.message
    assert not check(split(total), x.at[3, 1].set(-jnp.inf), mesh=MESH).findings


def test_data_that_differs_over_one_axis_is_enough():
    program = split(lambda x: lax.psum(x.sum(), ("data", "model")), in_specs=P("data", "model"))
    x = jnp.arange(4.0)[:, None] * jnp.ones(4)
    assert not check(program, x, mesh={"data": [1, 2], "model": [1, 2]}).findings


def test_one_device_only():
    verdict = check(split(total), normal(8), mesh={"data": [1]})
    assert codes(verdict) == {"SW502"}
    assert not check(split(total), normal(8), mesh={"data": [1]}, reference=np.sum).findings
    assert not check(split(total), normal(8), mesh={"data": 2}).findings


def test_a_function_that_returns_nothing():
    for f in (lambda x: None, lambda x: {}, split(lambda x: None)):
        assert codes(check(f, normal(8), mesh=MESH)) == {"SW501"}
        proof = sw.prove(f, normal(8), mesh=MESH)
        assert (proof.status, codes(proof)) == ("unknown", {"SW501"})
        assert "(0 results on 2 meshes)" in str(proof)
        for look in (sw.inspect, sw.explain):
            (note,) = look(f, normal(8), mesh={"data": 2}).notes
            assert note == "the function returns no arrays, so what it computes is left out."


def test_a_wrong_program_is_wrong_whatever_the_data():
    verdict = check(split(lambda x: lax.psum(x.mean(), "data")), jnp.ones(8), mesh=MESH)
    assert not verdict
    assert codes(verdict) == {"SW401"}


# --- shapes


def test_shapes_are_enough():
    verdict = check(split(total), Shape((8, 3), jnp.float32), mesh=MESH)
    assert verdict.drawn
    assert str(verdict) == "program: right on {data: 1}, {data: 2} (values drawn)"
    wrong = check(split(lambda x: lax.psum(x.mean(), "data")), Shape((8,), "float32"), mesh=MESH)
    assert codes(wrong) == {"SW401"}
    assert wrong.to_dict()["drawn"] is True


def drawn(program, *shapes, seed=0):
    """The values that are drawn for the shapes of a program."""
    from shardwise._analysis.draw import DrawnArguments
    from shardwise._engine.tracing import Tracing

    return DrawnArguments(Tracing(program, sw.mesh(data=1)), shapes).run(seed)[1]


def test_indices_stay_within_bounds_wherever_they_are_used():
    def body(table, ids, labels, start, segments):
        rows = table[ids]
        picked = jnp.take_along_axis(rows, labels[:, None] % 100, axis=1)
        window = lax.dynamic_slice(table, (start, 0), (20, 4))
        sums = jax.ops.segment_sum(picked, segments, num_segments=3)
        hot = jax.nn.one_hot(labels, 5)
        looped = lax.scan(lambda c, i: (c + table[i].sum(), None), 0.0, ids)[0]
        return sum(x.sum() for x in (rows, picked, window, sums, hot)) + looped

    shapes = (
        Shape((30, 4), "float32"),
        Shape((500,), "int32"),
        Shape((500,), "int32"),
        Shape((), "int32"),
        Shape((500,), "int8"),
    )
    _, ids, labels, start, segments = drawn(split(body, in_specs=P()), *shapes)
    assert (ids.min(), ids.max()) == (0, 29)
    assert (labels.min(), labels.max()) == (0, 3)
    assert 0 <= start <= 10
    assert set(np.unique(segments)) == {0, 1, 2}
    assert segments.dtype == jnp.int8


def test_the_number_of_a_branch_is_one_there_is():
    def body(x, numbers):
        pick = lambda n: lax.switch(n, [jnp.sin, jnp.cos, jnp.tanh], x).sum()  # noqa: E731
        return lax.map(pick, numbers).sum()

    _, numbers = drawn(split(body, in_specs=P()), Shape((4,), "float32"), Shape((99,), "int32"))
    assert set(np.unique(numbers)) == {0, 1, 2}


def test_types_of_every_kind():
    key = jax.eval_shape(lambda: jax.random.key(0, impl="rbg"))
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))
    shapes = {
        "key": key,
        "keys": keys,
        "raw": Shape((2,), "uint32"),
        "mask": Shape((400,), "bool"),
        "half": Shape((4, 4), "bfloat16"),
        "complex": Shape((4,), "complex64"),
        "count": Shape((), "int32"),
        "given": np.float32([7.0]),
    }
    (got,) = drawn(lambda x, *, mesh: jnp.zeros(()), shapes)
    assert jax.random.key_impl(got["key"]) == "rbg"
    assert got["keys"].shape == (3,)
    assert len(set(map(str, jax.random.key_data(got["keys"])))) == 3
    assert got["raw"].max() > 1000
    assert 200 < got["mask"].sum() < 400
    assert got["half"].dtype == jnp.bfloat16
    assert got["complex"].imag.any()
    assert 0 <= got["count"] < 10
    assert got["given"] is shapes["given"]


def test_the_seed_decides():
    program, shape = lambda x, *, mesh: x.sum(), Shape((8,), "float32")
    one, again, other = (drawn(program, shape, seed=seed)[0] for seed in (0, 0, 1))
    assert (one == again).all()
    assert (one != other).any()


def test_numbers_without_signs_where_signs_are_not_finite():
    def adam(g, nu, *, mesh):
        return g / jnp.sqrt(nu)

    shape = Shape((64,), "float32")
    _, nu = drawn(adam, shape, shape)
    assert (nu > 0).all()
    assert (drawn(lambda g, nu, *, mesh: g * nu, shape, shape)[1] < 0).any()
    assert not check(adam, shape, shape, mesh={"data": 1}, reference=adam).limited


def test_abstract_objects_of_nnx():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.table = nnx.Embed(12, 4, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.drop = nnx.Dropout(0.1, rngs=rngs)

        def __call__(self, ids):
            return self.drop(self.norm(self.table(ids)))

    model = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))

    def loss(model, ids, *, mesh):
        return jnp.mean(model(ids) ** 2)

    ids = Shape((32,), "int32")
    new, numbers = drawn(loss, model, ids)
    assert isinstance(new, Model)
    assert isinstance(model.table.embedding.get_value(), jax.ShapeDtypeStruct)
    assert numbers.max() == 11
    reference = functools.partial(loss, mesh=None)  # without one, it would not be run
    assert check(loss, model, ids, mesh={"data": [1, 2]}, reference=reference).drawn


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64"])
def test_types_that_jax_narrows_are_drawn_quietly(dtype):
    program = lambda x, *, mesh: x.sum()  # noqa: E731
    (x,) = drawn(program, Shape((4,), dtype))
    assert x.dtype == jax.dtypes.canonicalize_dtype(dtype)


@pytest.mark.parametrize(
    "before",
    [lambda x: x / 255, lambda x: x.reshape(4, 8), lambda x: x.astype("bfloat16"), jnp.ones_like],
)
def test_what_is_done_to_it_before_it_is_split_does_not_hide_that_it_is_alike(before):
    largest = split(lambda x: lax.pmax(x.mean().astype("float32"), "data"))
    program = lambda x, *, mesh: largest(before(x), mesh=mesh)  # noqa: E731
    assert codes(check(program, jnp.ones((8, 4)), mesh=MESH)) == {"SW504"}
    if before is not jnp.ones_like:
        assert not check(program, jnp.arange(32.0).reshape(8, 4), mesh=MESH)


def test_what_rows_are_made_from_inside_is_looked_at():
    """The argument is a number, and what is split differs from row to row."""
    program = lambda x, *, mesh: split(total)(x * jnp.arange(8.0), mesh=mesh)  # noqa: E731
    assert check(program, jnp.float32(3), mesh=MESH).findings == ()


def named(body):
    """A program of two arguments, by their names."""
    program = split(body, (P("data"), P("data")))
    return lambda x, mask, *, mesh: program(x, mask, mesh=mesh)


def masked(x, mask):
    return lax.pmean(jnp.sum(x * mask) / jnp.sum(mask), "data")


def test_an_argument_that_is_alike_beside_one_that_is_not():
    program = named(masked)
    x, ones = jnp.arange(8.0) ** 2, jnp.ones(8)
    verdict = check(program, x, ones, mesh=MESH)
    assert verdict
    (found,) = verdict.findings
    assert found.code == "SW504"
    assert "the same mask" in found.message
    assert not check(program, x, ones.at[0].set(0.0), mesh=MESH)


def test_an_argument_that_is_alike_where_the_program_is_proved():
    def right(x, mask):
        return lax.psum(jnp.sum(x * mask), "data") / lax.psum(jnp.sum(mask), "data")

    program = named(right)
    assert check(program, jnp.arange(8.0), jnp.ones(8), mesh=MESH).findings == ()


def test_a_state_that_begins_with_zeros_is_not_told():
    """It comes back, changed by what differs."""

    def step(w, moment, x):
        gradient = lax.psum_scatter(jnp.sin(x).sum(0), "data", tiled=True)
        moment = 0.9 * moment + gradient
        return w - 0.1 * jnp.sign(moment) * jnp.sqrt(jnp.abs(moment)), moment

    specs = P("data"), P("data"), P("data")
    program = split(step, specs, out_specs=specs[:2])
    w, x = jnp.arange(8.0), jnp.arange(64.0).reshape(8, 8)
    assert check(program, w, jnp.zeros(8), x, mesh=MESH).findings == ()


# --- what zeros hide


def unsynchronised(x, gain):
    """A norm by each device's own rows, beside which the first gain of a network is zero."""
    return x + gain * (x - x.mean(0)) / x.std(0)


def synchronised(x, gain):
    return x + gain * (x - lax.pmean(x.mean(0), "data"))


def rows(body, *specs):
    return split(body, in_specs=(P("data"), *specs), out_specs=P("data"))


def test_zeros_that_hide_a_mistake_are_named():
    x, program = normal(8, 4, seed=0), rows(unsynchronised, P())
    verdict = check(program, x, jnp.zeros(4), mesh=MESH)
    assert verdict.ok
    (one,) = verdict.findings
    assert one.code == "SW505"
    assert not one.certain
    assert one.message.startswith("args[1] is zero everywhere, and with other numbers there")
    assert "gain * (x" in one.where.text
    assert not check(program, x, jnp.ones(4), mesh=MESH)


@pytest.mark.parametrize("zero", [0.0, np.zeros(()), np.zeros((), "float16")])
def test_a_number_that_is_zero_hides_a_mistake_too(zero):
    verdict = check(rows(unsynchronised, P()), normal(8, 4, seed=0), zero, mesh=MESH)
    assert codes(verdict) == {"SW505"}


def test_zeros_that_hide_nothing_are_no_matter():
    x = normal(8, 4, seed=0)
    assert not check(rows(synchronised, P()), x, jnp.zeros(4), mesh=MESH).findings

    def kept(x, gain):  # what is not proved, and right with any gain
        return x + gain * jnp.sort(lax.all_gather(x, "data", tiled=True), 0)[3]

    assert not check(rows(kept, P()), x, jnp.zeros(4), mesh=MESH).findings


def test_zeros_beside_a_reference():
    x, reference = normal(8, 4, seed=0), lambda x, gain: x + gain * (x - x.mean(0)) / x.std(0)
    found = check(
        rows(unsynchronised, P()), x, jnp.zeros(4), mesh=MESH, reference=reference
    ).findings
    assert {one.code for one in found} == {"SW505"}
    # The result of other numbers is not known.
    assert check(rows(unsynchronised, P()), x, jnp.zeros(4), mesh=MESH, reference=x)
