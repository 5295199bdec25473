"""The mistakes of the textbook, each next to the step that cannot make them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P

import shardwise as sw

from ..support import assert_same, normal, real_mesh

X, Y = normal(16, 3), normal(16, 1, seed=1)
BATCH = {"x": X, "y": Y}
PARAMS = {"w": jnp.asarray(normal(3, 1, seed=2))}
MESHES = {"data": [1, 2, 4, 8]}


def losses(params, batch):
    return ((batch["x"] @ params["w"] - batch["y"]) ** 2).mean(-1)


def mean_loss(params, batch):
    return losses(params, batch).mean()


def by_hand(per_shard):
    """A data-parallel step written by hand, around what each device does with its shard."""

    def step(params, batch, *, mesh):
        specs = {"in_specs": (P(), P("data")), "out_specs": P()}
        return jax.shard_map(per_shard, mesh=mesh, check_vma=True, **specs)(params, batch)

    return step


def textbook(params, batch):
    grads = lax.pmean(jax.grad(mean_loss)(params, batch), "data")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def summed(params, batch):
    grads = lax.psum(jax.grad(mean_loss)(_varying(params), batch), "data")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def updated_per_shard(params, batch):
    params = _varying(params)
    grads = jax.grad(mean_loss)(params, batch)
    moved = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return lax.psum(jax.tree.map(lambda a, b: a - b, moved, params), "data")


def averaged(params, batch):
    grads = lax.pmean(jax.grad(mean_loss)(_varying(params), batch), "data")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def _varying(params):
    return jax.tree.map(lambda p: lax.pcast(p, "data", to="varying"), params)


@pytest.mark.parametrize("per_shard", [textbook, summed, updated_per_shard])
def test_the_textbook_is_faulted(per_shard):
    verdict = sw.check(by_hand(per_shard), PARAMS, BATCH, mesh=MESHES)
    assert not verdict
    assert any(finding.where and finding.where.line for finding in verdict.findings)


@pytest.mark.parametrize("optimizer", [optax.sgd(0.1), optax.adam(0.1)])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_step_passes(optimizer, accumulate):
    step = sw.data_parallel(losses, optimizer, accumulate=accumulate, norms=True)
    verdict = sw.check(step, step.init(PARAMS), BATCH, mesh=MESHES)
    assert verdict, verdict


def test_the_step_of_nnx_passes():
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    step = sw.nnx.data_parallel(lambda m, b: ((m(b["x"]) - b["y"]) ** 2).mean(-1))
    before = jax.device_get(nnx.state(model))
    verdict = sw.check(step, model, optimizer, BATCH, mesh=MESHES)
    assert verdict, verdict
    assert_same(jax.device_get(nnx.state(model)), before)


def test_objects_are_called_as_the_caller_calls_them():
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    step = sw.nnx.data_parallel(lambda m, b: ((m(b["x"]) - b["y"]) ** 2).mean(-1))
    report = sw.explain(step, model, optimizer, BATCH, mesh=sw.mesh(data=8))
    names = {one.path for one in report.arguments}
    assert {"model['kernel']", "model['bias']", "batch['x']", "batch['y']"} <= names
    assert "updated model['kernel']" in {one.path for one in report.results}


@pytest.mark.parametrize("mesh", [sw.mesh(data=8), real_mesh(data=8)])
def test_the_step_is_the_right_one_by_hand(mesh):
    step = sw.data_parallel(losses, optax.sgd(0.1), mesh=mesh)
    state, _ = step(step.init(PARAMS), BATCH)
    assert_same(jax.device_get(state.params), jax.device_get(averaged_on_eight()))
    wrong = jax.device_get(by_hand(textbook)(PARAMS, BATCH, mesh=real_mesh(data=8)))
    moved, too_far = state.params["w"] - PARAMS["w"], wrong["w"] - PARAMS["w"]
    np.testing.assert_allclose(too_far, 8 * np.asarray(moved), rtol=1e-4)


def averaged_on_eight():
    return by_hand(averaged)(PARAMS, BATCH, mesh=real_mesh(data=8))


def test_an_optimizer_built_per_step_forgets():
    """Momentum accumulates over steps; an optimizer that is new each time never has any."""
    optimizer = optax.sgd(0.1, momentum=0.9)
    step = sw.data_parallel(losses, optimizer, mesh=real_mesh(data=8))
    state = step.init(PARAMS)
    kept, forgetful = (PARAMS, optimizer.init(PARAMS)), PARAMS
    for _ in range(3):
        state, _ = step(state, BATCH)
        updates, opt_state = optimizer.update(jax.grad(mean_loss)(kept[0], BATCH), kept[1])
        kept = optax.apply_updates(kept[0], updates), opt_state
        grads = jax.grad(mean_loss)(forgetful, BATCH)
        updates, _ = optimizer.update(grads, optimizer.init(forgetful))
        forgetful = optax.apply_updates(forgetful, updates)
    assert_same(jax.device_get(state.params), jax.device_get(kept[0]))
    assert abs(forgetful["w"] - kept[0]["w"]).max() > 0.05
