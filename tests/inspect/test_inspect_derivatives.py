"""Forward and backward values are told apart; derivatives stand where they are asked for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw

from ..support import normal
from .programs import (
    averages_twice,
    bends,
    deep,
    descends,
    learns,
    learns_around,
    learns_in_a_loop,
    line_of,
    predicted,
    scanned,
    two_slopes,
)

MESH = {"data": 4}
W = {"a": normal(3, 2), "b": normal(2)}
X, Y, RATE = normal(8, 3), normal(8, seed=1), np.float32(0.1)


def whole_loss(w):
    return jnp.mean((predicted(w, X) - Y) ** 2)


@pytest.fixture(scope="module")
def inside() -> sw.Inspection:
    return sw.inspect(learns, W, X, Y, RATE, np.float32(7), mesh=MESH)


@pytest.fixture(scope="module")
def around() -> sw.Inspection:
    return sw.inspect(learns_around, W, X, Y, RATE, mesh=MESH)


def on(found: sw.Inspection, line: int) -> list[sw.Step]:
    return [step for step in found if step.where.line == line]


class TestPasses:
    def test_a_line_has_its_passes_apart(self, inside):
        stops = [stop for stop in inside.stops if stop.where.line == line_of(predicted, "hidden")]
        assert [stop.mark for stop in stops] == ["", "backward pass"]
        assert all(not step.backward for step in stops[0].steps)
        assert all(step.backward for step in stops[1].steps)
        assert 'h = jnp.tanh(x @ w["a"])  # hidden\n  h = tanh: ' in str(inside)
        assert 'h = jnp.tanh(x @ w["a"])  # hidden  (backward pass)\n  psum over data: ' in str(
            inside
        )

    def test_what_is_made_of_gradients_is_the_update(self, inside):
        assert {step.direction for step in on(inside, line_of(learns, "new"))} == {"update"}
        assert "# new  (update)\n  new ['a'] = sub: f32[3,2], the whole\n" in str(inside)

    def test_the_data_and_the_pages_say_it(self, inside):
        data = inside.to_dict()
        told = {(step["pass"], step["backward"]) for step in data["steps"]}
        assert told == {("forward", False), ("backward", True), ("update", False)}
        assert ">backward pass</span>" in inside._repr_html_()
        assert '"mark": "backward pass"' in inside.html()

    def test_a_forward_pass_after_the_update_is_a_forward_pass(self, around):
        line = line_of(predicted, "hidden")
        assert [stop.mark for stop in around.stops if stop.where.line == line] == [
            "",
            "backward pass",
            "",
        ]

    def test_a_program_without_derivatives_has_one_pass(self):
        found = sw.inspect(lambda w, x: predicted(w, x), W, X, mesh=MESH)
        assert {(step.direction, step.saved) for step in found} == {("forward", False)}


class TestNames:
    """A name stands for the value that the program calls so, and for nothing that autodiff adds."""

    @pytest.mark.parametrize("name", ["inside", "around"])
    def test_a_value_that_is_differentiated(self, name, request):
        found = request.getfixturevalue(name)
        first = next(step for step in found if step.name == "h")
        assert first.operation == "tanh"
        held = np.concatenate([first.at(data=i) for i in range(4)])
        np.testing.assert_allclose(held, np.tanh(X @ W["a"]), rtol=1e-5)

    def test_what_only_the_backward_pass_needs_is_left_out_at_first(self, inside):
        (kept,) = (step for step in on(inside, line_of(predicted, "hidden")) if step.saved)
        # JAX 0.10 has `1 - tanh(x)` there, JAX 0.12 `1 - tanh(x)**2`.
        assert (kept.operation != "tanh", kept.name) == (True, "")
        assert "kept for the backward pass" not in str(inside)
        told = f"{kept.operation}: f32[2,2], its rows along data, kept for the backward pass"
        assert told in inside.text(every=True)

    def test_a_loss_that_grad_does_not_give_lends_its_name_to_nothing(self):
        found = sw.inspect(averages_twice, normal(3), X, mesh=MESH)
        (error,) = (step for step in found if step.name == "error")
        assert error.operation == "dot_general"
        loss = on(found, line_of(averages_twice, "loss"))
        assert {step.name for step in loss} == {""}

    def test_every_leaf_of_a_statement_has_its_name(self, inside):
        new = [step for step in inside if step.name == "new"]
        assert [step.shape for step in new] == [(3, 2), (2,)]

    def test_a_value_on_the_way_has_no_name(self):
        found = sw.inspect(deep, [normal(3, 3), normal(3, 3)], X, mesh=MESH)
        layer = [step for step in on(found, line_of(deep, "layer")) if step.name]
        assert [(step.name, step.operation) for step in layer] == [("h", "add"), ("h", "add")]


class TestResults:
    """The loss and the gradients, at the line of `value_and_grad` or `grad`."""

    @pytest.mark.parametrize("name", ["inside", "around"])
    def test_the_loss_and_the_gradients(self, name, request):
        found = request.getfixturevalue(name)
        function = learns if name == "inside" else learns_around
        asked = [s for s in on(found, line_of(function, "asked")) if s.kind == "derivative"]
        value, slopes = jax.value_and_grad(whole_loss)(W)
        told = [(step.name, step.operation, step.direction) for step in asked]
        assert told == [
            ("value", "value_and_grad (value)", "forward"),
            ("grads", "value_and_grad (gradient)", "backward"),
            ("grads", "value_and_grad (gradient)", "backward"),
        ]
        for step, right in zip(asked, (value, slopes["a"], slopes["b"]), strict=True):
            np.testing.assert_allclose(step.at(), right, rtol=1e-5, atol=1e-6)
        leaf = " ['a']" if name == "inside" else ""  # around, they are all that is returned
        assert f"grads{leaf} = value_and_grad (gradient): f32[3,2]" in str(found)
        assert [step.shape for step in found.at(where="grads")] == [(3, 2), (2,)]

    def test_they_stand_after_the_backward_pass(self, inside):
        numbers = [step.number for step in inside if step.kind == "derivative"]
        backward = [s.number for s in inside if s.backward and s.kind != "derivative"]
        assert max(backward) + 1 == numbers[0]
        assert [step.number for step in inside] == list(range(len(inside)))

    def test_a_gradient_that_is_already_summed_is_seen(self):
        found = sw.inspect(averages_twice, normal(3), X, mesh=MESH)
        slope, psum, mean = on(found, line_of(averages_twice, "asked"))
        assert (slope.operation, slope.name, slope.over) == ("grad (gradient)", "", ())
        assert (psum.operation, mean.name) == ("psum over data", "grads")
        np.testing.assert_allclose(mean.at(), slope.at(), rtol=1e-6)
        right = jax.grad(lambda w: jnp.mean((X @ w) ** 2))(normal(3))
        np.testing.assert_allclose(slope.at(), 4 * right, rtol=1e-5)

    def test_each_iteration_of_a_loop_has_its_own(self):
        found = sw.inspect(learns_in_a_loop, normal(3), X, mesh=MESH)
        asked = [(step.name, step.iteration) for step in found if step.kind == "derivative"]
        assert asked == [(name, (turn,)) for turn in range(3) for name in ("value", "slope")]
        assert {step.name for step in found} >= {"value", "slope"}
        assert "value, slope" not in {step.name for step in found}

    def test_what_comes_beside_the_gradient(self):
        found = sw.inspect(deep, [normal(3, 3), normal(3, 3)], X, mesh=MESH)
        asked = [(s.name, s.shape) for s in found if s.kind == "derivative"]
        assert asked == [("total", ()), ("grads", (3, 3)), ("grads", (3, 3))]

    def test_two_gradients_are_not_taken_for_a_value_and_a_gradient(self):
        found = sw.inspect(two_slopes, normal(3), np.float32(2), X, mesh=MESH)
        asked = [(s.name, s.shape) for s in found if s.kind == "derivative"]
        assert asked == [("by_a, by_b", (3,)), ("by_a, by_b", ())]

    def test_a_lambda_on_the_line_of_grad(self):
        found = sw.inspect(descends, normal(3), X, mesh=MESH)
        (slope,) = (step for step in found if step.kind == "derivative")
        assert slope.name == "return"
        np.testing.assert_allclose(slope.at(), found.steps[-1].at(), rtol=1e-6)

    def test_a_derivative_of_a_derivative(self):
        found = sw.inspect(bends, normal(3), X, mesh=MESH)
        asked = [(s.name, s.shape) for s in found if s.kind == "derivative"]
        assert asked == [("slope", (3,)), ("bend", (3,))]

        def whole(w):
            return jnp.mean(jnp.sin(X @ w))

        right = jax.grad(whole)(normal(3))
        np.testing.assert_allclose(found.at(where="slope").steps[0].at(), right, rtol=1e-4)
        right = jax.grad(lambda w: jnp.sum(jax.grad(whole)(w) ** 2))(normal(3))
        np.testing.assert_allclose(found.at(where="bend").steps[0].at(), right, rtol=1e-3)

    def test_layers_in_a_scan_that_are_computed_again(self):
        ws = normal(2, 4, 4)
        found = sw.inspect(scanned, ws, normal(8, 4), mesh=MESH)
        stops = [stop for stop in found.stops if stop.where.line == line_of(scanned, "layer")]
        passes = [(stop.mark, stop.iteration) for stop in stops]
        assert passes == [(mark, (turn,)) for mark in ("", "backward pass") for turn in (0, 1)]
        named = [step for step in found if step.name == "out"]
        assert {(step.operation, step.direction) for step in named} == {("tanh", "forward")}
        (value, slope) = (step for step in found if step.kind == "derivative")
        assert (value.name, slope.name, slope.over) == ("value", "slope", ("data",))

        def whole(ws):
            h = normal(8, 4)
            for w in ws:
                h = jnp.tanh(h @ w)
            return jnp.mean(h**2)

        rows = [slope.at(data=i) for i in range(4)]
        right = jax.grad(whole)(ws)
        np.testing.assert_allclose(np.concatenate(rows, axis=1), right, rtol=1e-4, atol=1e-6)
        assert "optimization_barrier" not in str(found)


class TestArguments:
    def test_all_are_listed_also_those_that_are_whole_and_unused(self, inside):
        given = [step for step in inside if step.kind == "input"]
        assert [step.title for step in given] == [
            "w['a'], whole on each device",
            "w['b'], whole on each device",
            "x, as in_specs split it",
            "y, as in_specs split it",
            "rate, whole on each device",
            "unused, whole on each device",
        ]
        np.testing.assert_array_equal(given[0].at(), W["a"])
        assert "  unused, whole on each device: f32[], the whole of unused\n" in str(inside)

    def test_of_many_whole_ones_the_first_are_printed(self):
        many = [np.float32(i) for i in range(40)]
        found = sw.inspect(descends_with, many, X, mesh=MESH)
        assert str(found).count("whole on each device") == 12
        assert "x, as in_specs split it" in str(found)
        assert found.text(every=True).count("whole on each device") == 40


def descends_with(many, x, *, mesh):
    def body(many, x):
        return jax.lax.psum(x.sum() * sum(many), "data")

    specs = (jax.P(), jax.P("data"))
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=jax.P())(many, x)
