"""Flax NNX objects as arguments: updated in place, as `nnx.jit` updates them."""

from functools import partial

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import assert_same, normal, real_mesh


@pytest.fixture(autouse=True)
def _usual_promotion(_strict):
    """Optax and Flax mix dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield


class Net(nnx.Module):
    """A layer, dropout, and a counter that every call changes."""

    def __init__(self, rngs):
        self.layer = nnx.Linear(3, 2, rngs=rngs)
        self.norm = nnx.BatchNorm(2, axis_name="x", rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x):
        self.calls[...] += 1
        return self.norm(jnp.tanh(self.layer(x)))


def squared(model, x, y):
    return lax.pmean(jnp.mean((model(x) - y) ** 2), "x")


def split_step(model, optimizer, x, y, *, mesh, check_vma):
    """`jax.shard_map` over the state of the model; the update is outside."""
    graph, state = nnx.split(model)

    def body(state, x, y):
        loss, gradient = nnx.value_and_grad(squared)(nnx.merge(graph, state), x, y)
        return loss, lax.pmean(gradient, "x")

    specs = {"in_specs": (P(), P("x"), P("x")), "out_specs": (P(), P())}
    run = jax.shard_map(body, mesh=mesh, check_vma=check_vma, **specs)
    loss, gradient = run(state, x, y)
    optimizer.update(model, gradient)
    return loss


def whole_step(model, optimizer, x, y, *, mesh, check_vma):
    """`nnx.shard_map` over model and optimizer, updated inside."""
    specs = {"in_specs": (P(), P(), P("x"), P("x")), "out_specs": P()}

    @partial(nnx.shard_map, mesh=mesh, check_vma=check_vma, **specs)
    def body(model, optimizer, x, y):
        loss, gradient = nnx.value_and_grad(squared)(model, x, y)
        # With the check off, the gradients and then the parameters would drift apart.
        optimizer.update(model, lax.pmean(gradient, "x"))
        return loss

    return body(model, optimizer, x, y)


def fresh(make):
    model = make(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)


def train(step, make):
    """Three steps: the losses and everything the objects hold afterwards."""
    model, optimizer = fresh(make)
    x, y = normal(8, 3), normal(8, 2)
    losses = [step(model, optimizer, x, y) for _ in range(3)]
    return losses, held((model, optimizer))


def held(objects):
    """Everything that objects hold, as arrays."""
    return jax.device_get(nnx.to_pure_dict(nnx.state(objects)))


def linear(rngs):
    return nnx.Linear(3, 2, rngs=rngs)


CASES = [
    (step, make, check_vma)
    for step, make in ((split_step, linear), (whole_step, linear), (whole_step, Net))
    for check_vma in (True, False)
    # With the check on, JAX refuses the running average of `Net` as replicated.
    if not (make is Net and check_vma)
]


@pytest.mark.parametrize(("step", "make", "check_vma"), CASES)
def test_training_updates_in_place(step, make, check_vma):
    real = nnx.jit(partial(step, mesh=real_mesh(x=4), check_vma=check_vma))
    want = train(real, make)

    def bound(model, optimizer, x, y, *, mesh):
        return step(model, optimizer, x, y, mesh=mesh, check_vma=check_vma)

    for at_once in (1, 3):
        simulated = sw.simulate(bound, mesh=sw.mesh(x=4), at_once=at_once)
        assert_same(train(simulated, make), want)


def test_a_simulated_step_inside_nnx_jit():
    def bound(model, optimizer, x, y, *, mesh):
        return split_step(model, optimizer, x, y, mesh=mesh, check_vma=True)

    want = train(nnx.jit(partial(bound, mesh=real_mesh(x=4))), linear)
    assert_same(train(nnx.jit(sw.simulate(bound, mesh=sw.mesh(x=4))), linear), want)


def test_the_same_object_twice_and_an_object_as_result():
    def program(a, b, x, *, mesh):
        a.kernel[...] = a.kernel[...] + 1
        body = lambda kernel, x: lax.psum(jnp.tanh(x @ kernel), "x")  # noqa: E731
        specs = {"in_specs": (P(), P("x")), "out_specs": P()}
        b.bias[...] = jax.shard_map(body, mesh=mesh, **specs)(b.kernel[...], x).mean(0)
        return b

    def run(call):
        model = linear(nnx.Rngs(1))
        out = call(model, model, normal(8, 3))
        return held((model, out))

    want = run(nnx.jit(partial(program, mesh=real_mesh(x=4))))
    assert_same(run(sw.simulate(program, mesh=sw.mesh(x=4))), want)


def test_random_streams_move_on():
    def program(dropout, x, *, mesh):
        graph, state = nnx.split(dropout)

        def body(state, x):
            layer = nnx.merge(graph, state)
            out = layer(x)
            return out, nnx.state(layer)

        specs = {"in_specs": (P(), P("x")), "out_specs": (P("x"), P())}
        out, state = jax.shard_map(body, mesh=mesh, check_vma=False, **specs)(state, x)
        nnx.update(dropout, state)
        return out

    def run(call):
        layer = nnx.Dropout(0.5, rngs=nnx.Rngs(3))
        return jax.device_get([call(layer, normal(8, 3)) for _ in range(2)])

    want = run(nnx.jit(partial(program, mesh=real_mesh(x=4))))
    got = run(sw.simulate(program, mesh=sw.mesh(x=4)))
    assert_same(got, want)
    assert (got[0] != got[1]).any()


def test_a_call_with_other_names_is_another_program():
    def f(model, *, x=None, y=None, mesh):
        def body(w):
            return lax.psum(w.sum(), "x")

        total = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P())(model.w[...])
        return total + (0.0 if x is None else x.sum()) + (0.0 if y is None else 100 * y.sum())

    class One(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(8))

    call, model, x = sw.simulate(f, mesh=sw.mesh(x=4)), One(), jnp.ones(2)
    assert call(model, x=x) == 10.0
    assert call(model, y=x) == 208.0
