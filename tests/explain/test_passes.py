"""Forward, backward and update, told apart; and nothing counted that nobody needs."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

MESH = sw.mesh(data=8)
ARGS = jax.ShapeDtypeStruct((4, 2), jnp.float32), jax.ShapeDtypeStruct((16, 4), jnp.float32)


def squares(w, x):
    return jnp.mean((x @ w) ** 2)


def over(body, mesh, out_specs):
    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=out_specs)


def grad_around(w, x, *, mesh):
    def loss(w):
        return over(lambda w, x: lax.pmean(squares(w, x), "data"), mesh, P())(w, x)

    value, slope = jax.value_and_grad(loss)(w)
    return w - 0.1 * slope, value


def grad_around_jitted(w, x, *, mesh):
    return jax.jit(lambda w, x: grad_around(w, x, mesh=mesh))(w, x)


def grad_inside(w, x, *, mesh):
    def step(w, x):
        value, slope = jax.value_and_grad(lambda w: lax.pmean(squares(w, x), "data"))(w)
        return w - 0.1 * slope, value

    return over(step, mesh, (P(), P()))(w, x)


def averaged_after(w, x, *, mesh):
    def step(w, x):
        own = lax.pcast(w, "data", to="varying")
        slope = lax.pmean(jax.grad(squares)(own, x), "data")
        norm = jnp.sqrt(lax.psum(jnp.sum(slope**2) / 8, "data"))
        return w - 0.1 * slope / norm

    return over(step, mesh, P())(w, x)


def many_steps(w, x, *, mesh):
    def steps(w, x):
        def step(w, _):
            value, slope = jax.value_and_grad(lambda w: lax.pmean(squares(w, x), "data"))(w)
            return w - 0.1 * slope, value

        return lax.scan(step, w, None, length=3)

    return over(steps, mesh, (P(), P()))(w, x)


PASSES = {
    grad_around: ["forward", "backward"],
    grad_around_jitted: ["forward", "backward"],
    grad_inside: ["forward", "backward"],
    averaged_after: ["update", "update"],
    many_steps: ["forward", "backward"],
}


@pytest.mark.parametrize("f", PASSES, ids=lambda f: f.__name__)
def test_the_pass_of_each_collective(f):
    report = sw.explain(f, *ARGS, mesh=MESH)
    assert [use.direction for use in report.collectives] == PASSES[f]


def learns(w, moment, count, x, *, mesh):
    """An optimizer with a moment and a bias correction, which need no gradient to begin with."""

    def body(w, moment, count, x):
        slope = jax.grad(lambda w: lax.pmean(squares(w, x), "data"))(w)
        count = count + 1
        moment = 0.9 * moment + 0.1 * slope
        return w - 0.1 * moment / (1 - 0.9**count), moment, count

    specs = P(), P(), P(), P("data")
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(P(), P(), P()))(
        w, moment, count, x
    )


def test_what_only_the_optimizer_needs_is_the_update():
    w, x = ARGS
    program = sw.explain(learns, w, jnp.zeros_like(w), jnp.float32(0), x, mesh=MESH)
    directions = [
        direction for direction, _ in itertools.groupby(s.direction for s in program.steps)
    ]
    assert directions == ["forward", "backward", "update"]


def test_what_comes_after_the_backward_pass_is_the_update():
    steps = sw.explain(grad_around, *ARGS, mesh=MESH).steps
    assert [steps[0].direction, steps[-1].direction] == ["forward", "update"]
    assert "update" in str(sw.explain(averaged_after, *ARGS, mesh=MESH))


# --- what nobody needs


def stacked(w, x, *, mesh):
    """A metric that a scan stacks up and nobody looks at."""

    def steps(w, x):
        def step(w, _):
            return w + lax.psum(x.sum(), "data"), lax.pmax(x.max(), "data")

        return lax.scan(step, w, None, length=3)[0]

    return over(steps, mesh, P())(w, x)


def carried(w, x, *, mesh):
    """A total that only itself needs."""

    def steps(w, x):
        def step(carry, _):
            w, total = carry
            return (w + lax.psum(x.sum(), "data"), lax.pmax(total + x.max(), "data")), None

        return lax.scan(step, (w, lax.pmax(x.max(), "data")), None, length=3)[0][0]

    return over(steps, mesh, P())(w, x)


def counted_while(w, x, *, mesh):
    def steps(w, x):
        def step(carry):
            i, w, total = carry
            return i + 1, w + lax.psum(x.sum(), "data"), lax.pmax(total + x.max(), "data")

        start = (0, w, lax.pmax(x.max(), "data"))
        return lax.while_loop(lambda carry: carry[0] < 3, step, start)[1]

    return over(steps, mesh, P())(w, x)


def branched(w, x, *, mesh):
    def body(w, x):
        def yes(x):
            return lax.psum(x.sum(), "data"), lax.pmax(x.max(), "data")

        def no(x):
            return lax.psum(-x.sum(), "data"), lax.pmax(-x.max(), "data")

        return w + lax.cond(w.sum() > 0, yes, no, x)[0]

    return over(body, mesh, P())(w, x)


@pytest.mark.parametrize("f", [stacked, carried, counted_while, branched])
def test_what_nobody_needs_is_not_sent(f):
    report = sw.explain(f, *ARGS, mesh=MESH)
    assert {use.name for use in report.collectives} == {"psum"}


@pytest.mark.parametrize("f", [stacked, carried, counted_while, branched])
def test_and_the_compiler_does_not_send_it(f):
    devices = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    args = [jnp.ones(one.shape, one.dtype) for one in ARGS]
    text = jax.jit(lambda w, x: f(w, x, mesh=devices)).lower(*args).compile().as_text()
    sent = text.count(" all-reduce(") + text.count(" all-reduce-start(")
    assert sent == len(sw.explain(f, *ARGS, mesh=MESH).collectives)


# --- the forward pass once more


def measured_after(w, x, *, mesh):
    """The loss of the new parameters, and another figure made of what the model gives."""

    def model(w, x):
        return jnp.tanh(x @ w)

    def loss(w, x):
        return lax.pmean(jnp.mean(model(w, x) ** 2), "data")

    def step(w, x):
        slope = jax.grad(loss)(w, x)
        new = w - 0.1 * slope / jnp.sqrt(lax.psum(jnp.sum(slope**2), "data"))
        return new, loss(new, x), lax.pmax(jnp.max(model(new, x)), "data")

    return over(step, mesh, P())(w, x)


def measured_around(w, x, *, mesh):
    def per_device(w, x):
        return lax.pmean(squares(w, x), "data")

    loss = over(per_device, mesh, P())
    value, slope = jax.value_and_grad(loss)(w, x)
    return value, loss(w - 0.1 * slope, x)


def on_one_line(w, x, *, mesh):
    """The update stands on the line of the forward pass."""

    def step(w, x):
        return lax.pmean(w - 0.1 * jax.grad(lambda w: lax.psum(squares(w, x), "data"))(w), "data")

    return over(step, mesh, P())(w, x)


AGAIN = {
    measured_after: [("psum", "backward"), ("psum", "update"), ("psum", "forward")]
    + [("pmax", "forward")],
    measured_around: [("psum", "forward"), ("psum", "backward"), ("psum", "forward")],
    on_one_line: [("psum", "backward"), ("psum", "update")],
}


@pytest.mark.parametrize("f", AGAIN, ids=lambda f: f.__name__)
def test_new_parameters_that_are_evaluated_go_through_a_forward_pass(f):
    report = sw.explain(f, *ARGS, mesh=MESH)
    assert [(use.name, use.direction) for use in report.collectives] == AGAIN[f]
