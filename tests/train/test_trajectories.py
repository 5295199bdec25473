"""Trajectories: many steps on many meshes end where one device ends."""

import functools

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import shardwise as sw

from ..support import assert_same, real_mesh
from .problems import (
    CNN_PROBLEM,
    MLP,
    OPTIMIZERS,
    TOKENS,
    cnn_keys,
    one_device,
    one_device_tokens,
    train,
)

VIRTUAL = [sw.mesh(data=n) for n in (1, 2, 8, 16, 64)]
REAL = [real_mesh(data=n) for n in (1, 2, 8)]
MESHES = [*VIRTUAL, *REAL]
CLIPPED = "adamw, clipped"


def name(mesh):
    kind = "real" if isinstance(mesh, jax.sharding.Mesh) else "virtual"
    return f"{kind} {'x'.join(map(str, mesh.shape.values()))}"


@functools.cache
def wanted(optimizer):
    return one_device(MLP, OPTIMIZERS[optimizer]())


@pytest.mark.parametrize("mesh", MESHES, ids=name)
def test_an_mlp_with_weights(mesh):
    step = sw.data_parallel(MLP.loss, OPTIMIZERS[CLIPPED](), mesh=mesh)
    assert_same(train(step, MLP), wanted(CLIPPED))


@pytest.mark.parametrize("mesh", [mesh for mesh in MESHES if mesh.size == 8], ids=name)
@pytest.mark.parametrize("optimizer", [each for each in OPTIMIZERS if each != CLIPPED])
def test_other_optimizers(mesh, optimizer):
    step = sw.data_parallel(MLP.loss, OPTIMIZERS[optimizer](), mesh=mesh)
    assert_same(train(step, MLP), wanted(optimizer))


@pytest.mark.parametrize("mesh", [sw.mesh(data=4), real_mesh(data=2)], ids=name)
def test_accumulation_on_top_of_a_mesh(mesh):
    step = sw.data_parallel(MLP.loss, OPTIMIZERS["adam"](), mesh=mesh, accumulate=3)
    assert_same(train(step, MLP), wanted("adam"))


@pytest.mark.parametrize("mesh", [sw.mesh(model=2, data=4), real_mesh(data=4, model=2)], ids=name)
def test_further_axes_stay_replicated(mesh):
    step = sw.data_parallel(MLP.loss, OPTIMIZERS["adam"](), mesh=mesh, axis="data")
    assert_same(train(step, MLP), wanted("adam"))


@pytest.mark.parametrize("mesh", [VIRTUAL[2], VIRTUAL[4], REAL[1], REAL[2]], ids=name)
def test_a_linen_cnn_with_batch_statistics_and_dropout(mesh):
    optimizer = optax.sgd(0.05, momentum=0.9)
    want = one_device(CNN_PROBLEM, optimizer, cnn_keys)
    step = sw.data_parallel(CNN_PROBLEM.loss, optimizer, mesh=mesh, **CNN_PROBLEM.options)
    assert_same(train(step, CNN_PROBLEM), want)


@functools.cache
def wanted_tokens():
    return one_device_tokens(OPTIMIZERS["adamw, clipped"]())


@pytest.mark.parametrize("mesh", [VIRTUAL[2], VIRTUAL[4], REAL[2]], ids=name)
def test_an_nnx_transformer_with_masked_tokens(mesh):
    model = TOKENS.params()
    optimizer = nnx.Optimizer(model, OPTIMIZERS["adamw, clipped"](), wrt=nnx.Param)
    step = sw.nnx.data_parallel(TOKENS.loss, mesh=mesh)
    losses = [step(model, optimizer, batch)["loss"] for batch in TOKENS.batches()]
    got = jax.device_get((nnx.to_pure_dict(nnx.state(model)), losses))
    assert_same(got, wanted_tokens())
    assert int(optimizer.step[...]) == len(losses)


def test_clipping_comes_after_averaging():
    """Clipped on each device and then averaged is another gradient: here we would see it."""
    mesh, clip = real_mesh(data=8), optax.clip_by_global_norm(0.3)
    batch = next(MLP.batches())
    params = MLP.params()

    def mean(params, batch):
        losses, weights = MLP.loss(params, batch)
        return (losses * weights).sum() / weights.sum()

    def clipped(grads):
        return clip.update(grads, clip.init(grads))[0]

    step = sw.data_parallel(MLP.loss, optax.chain(clip, optax.sgd(1.0)), mesh=mesh)
    state, _ = step(step.init(params), batch)
    moved = jax.tree.map(lambda a, b: np.asarray(a - b), params, state.params)
    after = clipped(jax.grad(mean)(params, batch))
    assert_same(moved, jax.tree.map(np.asarray, after))
    shards = [jax.tree.map(lambda x: x[k : k + 2], batch) for k in range(0, 16, 2)]
    each = [clipped(jax.grad(mean)(params, shard)) for shard in shards]
    before = jax.tree.map(lambda *g: sum(g) / 8, *each)
    gap = jax.tree.map(lambda a, b: float(abs(a - b).max() / abs(b).max()), before, after)
    assert min(jax.tree.leaves(gap)) > 0.05
