"""The table of the four ways to write a data-parallel gradient, with JAX's check on and off.

Every wrong cell is faulted, with the right code and at the right line; every right one passes.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import P

from tests.support import check, normal, real_mesh

from .marks import line_of

MESH = {"data": [1, 2, 4]}
W, X = jnp.float32(1.0), jnp.array([1.0, 3.0, 7.0, 9.0])


def loss(w, x):
    return jnp.mean((w * x) ** 2)


def mean_of_gradient(w, x):
    grads = jax.grad(loss)(w, x)  # grad
    return jax.lax.pmean(grads, "data")  # pmean


def gradient_of_mean(w, x):
    return jax.grad(lambda w: jax.lax.pmean(loss(w, x), "data"))(w)  # grad


def gradient(w, x):
    return jax.grad(loss)(w, x)  # grad


def mean_of_local_gradient(w, x):
    local = jax.lax.pcast(w, "data", to="varying")
    grads = jax.grad(loss)(local, x)  # grad
    return jax.lax.pmean(grads, "data")  # pmean


# What four devices give, and what check says: codes with the line they stand at.
CELLS = {
    (mean_of_gradient, True): (280, {("SW401", "# grad")}),
    (mean_of_gradient, False): (70, set()),
    (gradient_of_mean, True): (70, set()),
    (gradient_of_mean, False): (2, {("SW403", "# grad")}),
    (gradient, True): (280, {("SW401", "# grad")}),
    (gradient, False): (2, {("SW403", "# grad")}),
    (mean_of_local_gradient, True): (70, set()),
    (mean_of_local_gradient, False): (70, set()),
}


def sharded(body, check_vma):
    def step(w, x, *, mesh):
        return jax.shard_map(
            body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=check_vma
        )(w, x)

    return step


cells = pytest.mark.parametrize(
    ("body", "check_vma"),
    [pytest.param(*cell, id=f"{cell[0].__name__}-{cell[1]}") for cell in CELLS],
)


def certain(verdict):
    return {(f.code, f.where.line) for f in verdict.findings if f.certain}


@cells
def test_real_devices_give_the_number_of_the_table(body, check_vma):
    got = jax.jit(functools.partial(sharded(body, check_vma), mesh=real_mesh(data=4)))(W, X)
    assert float(got) == CELLS[body, check_vma][0]


@cells
def test_each_cell_is_judged(body, check_vma):
    verdict = check(sharded(body, check_vma), W, X, mesh=MESH)
    wanted = {(code, line_of(body, mark)) for code, mark in CELLS[body, check_vma][1]}
    assert certain(verdict) == wanted, verdict
    assert verdict.ok == (not wanted)


def test_the_explanation_names_the_factor_and_both_ways_to_write_it():
    verdict = check(sharded(mean_of_gradient, True), W, X, mesh=MESH)
    text = str(verdict)
    assert "is 4 times what it is on one device: autodiff sums this gradient over 'data'" in text
    pmean = f"{Path(__file__).name}:{line_of(mean_of_gradient, '# pmean')}"
    assert f"the pmean at {pmean} averages equal values" in text
    assert "jax.grad(lambda w: jax.lax.pmean(loss(w, x), 'data'))(w)" in text
    assert "to='varying'" in text
    assert "{data: 4}" in text


# --- the same with Flax NNX


class Model(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(3, 8, rngs=rngs)
        self.outer = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        return self.outer(jnp.tanh(self.inner(x)))


def make(seed=0):
    model = Model(nnx.Rngs(seed))
    return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)


def model_loss(model, x, y):
    return jnp.mean((model(x) - y) ** 2)


def nnx_mean_of_gradient(model, x, y):
    value, grads = nnx.value_and_grad(model_loss)(model, x, y)  # grad
    return jax.lax.pmean(value, "data"), jax.lax.pmean(grads, "data")  # pmean


def nnx_gradient_of_mean(model, x, y):
    def mean_loss(model):
        return jax.lax.pmean(model_loss(model, x, y), "data")

    return nnx.value_and_grad(mean_loss)(model)  # grad


def nnx_gradient(model, x, y):
    value, grads = nnx.value_and_grad(model_loss)(model, x, y)  # grad
    return jax.lax.pmean(value, "data"), grads


def nnx_mean_of_local_gradient(model, x, y):
    graphdef, state = nnx.split(model)
    local = nnx.merge(graphdef, jax.lax.pcast(state, "data", to="varying"))
    value, grads = nnx.value_and_grad(model_loss)(local, x, y)  # grad
    return jax.lax.pmean((value, grads), "data")  # pmean


NNX_CELLS = {
    (nnx_mean_of_gradient, True): {("SW401", "# grad")},
    (nnx_mean_of_gradient, False): set(),
    (nnx_gradient_of_mean, True): set(),
    (nnx_gradient_of_mean, False): {("SW403", "# grad")},
    (nnx_gradient, True): {("SW401", "# grad")},
    (nnx_gradient, False): {("SW403", "# grad")},
    (nnx_mean_of_local_gradient, True): set(),
    (nnx_mean_of_local_gradient, False): set(),
}

NNX_MESH = {"data": [1, 4]}
DATA = jnp.asarray(normal(8, 3)), jnp.asarray(normal(8, 2))

nnx_cells = pytest.mark.parametrize(
    ("body", "check_vma"),
    [pytest.param(*cell, id=f"{cell[0].__name__}-{cell[1]}") for cell in NNX_CELLS],
)


def through_nnx_shard_map(body, check_vma):
    """Gradients as `nnx.shard_map` gives them."""

    def gradients(model, x, y, *, mesh):
        return nnx.shard_map(
            body,
            mesh=mesh,
            in_specs=(P(), P("data"), P("data")),
            out_specs=P(),
            check_vma=check_vma,
        )(model, x, y)

    return gradients


def training_step(body, check_vma):
    """A step that updates a model and its optimizer in place inside `nnx.shard_map`."""

    def per_device(model, optimizer, x, y):
        value, grads = body(model, x, y)
        optimizer.update(model, grads)
        return value

    def step(model, optimizer, x, y, *, mesh):
        return nnx.shard_map(
            per_device,
            mesh=mesh,
            in_specs=(P(), P(), P("data"), P("data")),
            out_specs=P(),
            check_vma=check_vma,
        )(model, optimizer, x, y)

    return step


def lines(body, cell):
    return {(code, line_of(body, mark)) for code, mark in cell}


@nnx_cells
def test_nnx_shard_map(body, check_vma):
    model, _ = make()
    before = jax.tree.map(np.array, nnx.state(model))
    verdict = check(through_nnx_shard_map(body, check_vma), model, *DATA, mesh=NNX_MESH)
    assert certain(verdict) == lines(body, NNX_CELLS[body, check_vma]), verdict
    assert_unchanged(before, nnx.state(model))


@nnx_cells
def test_nnx_optimizer(body, check_vma):
    """The new parameters are wrong; the line is still that of the gradient."""
    model, optimizer = make()
    before = jax.tree.map(np.array, nnx.state((model, optimizer)))
    verdict = check(training_step(body, check_vma), model, optimizer, *DATA, mesh=NNX_MESH)
    wanted = NNX_CELLS[body, check_vma]
    assert verdict.ok == (not wanted), verdict
    places = {line for _, line in certain(verdict)}
    assert places == {line for _, line in lines(body, wanted)}, verdict
    assert_unchanged(before, nnx.state((model, optimizer)))
    assert int(optimizer.step[...]) == 0


def assert_unchanged(before, after):
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)


def test_results_of_nnx_are_named_by_their_path():
    model, optimizer = make()
    verdict = check(training_step(nnx_gradient, True), model, optimizer, *DATA, mesh=NNX_MESH)
    leaves = {f.leaf for f in verdict.findings if f.certain}
    assert any("inner" in leaf or "outer" in leaf for leaf in leaves), leaves
