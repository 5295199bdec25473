"""Where a step runs, and with what: precision, memory, traffic, meshes."""

import contextlib
import gc

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from jax.sharding import AxisType

import shardwise as sw

from ..support import normal, real_mesh
from .steps import (
    BATCH,
    REAL,
    SGD,
    VIRTUAL,
    gradient,
    object_squares,
    plain_gradient,
    squares,
    with_metrics,
)


@pytest.mark.parametrize("mesh", [REAL, VIRTUAL])
def test_sums_are_taken_in_float32(mesh):
    """In bfloat16, 256 and 1 is 256: the small gradients would be lost one by one."""

    def loss(params, batch):
        return (params["w"].astype(jnp.bfloat16) * batch["x"].astype(jnp.bfloat16)).sum(-1)

    x = np.ones((64, 1), np.float32)
    x[0] = 256
    got, metrics = gradient(loss, mesh, {"x": x}, {"w": jnp.ones(1)}, accumulate=8)
    assert got["w"].dtype == np.float32
    np.testing.assert_allclose(got["w"], x.mean(0), rtol=1e-6)
    half, _ = gradient(loss, mesh, {"x": x}, {"w": jnp.ones(1, jnp.bfloat16)}, accumulate=8)
    assert half["w"].dtype == jnp.bfloat16
    np.testing.assert_allclose(half["w"].astype(np.float32), x.mean(0), rtol=0.01)
    assert metrics["loss"].dtype == jnp.float32


@pytest.mark.parametrize("mesh", [real_mesh(data=1), REAL, VIRTUAL])
def test_buffers_are_donated(mesh):
    """Two states never exist together: the new one is in the memory of the old."""
    step = sw.data_parallel(squares, optax.adam(0.1), mesh=mesh)
    state = step.init({"w": jnp.ones(3)})
    state, _ = step(state, BATCH)
    old = jax.tree.leaves((state.params, state.opt_state))
    state, _ = step(state, BATCH)
    assert all(leaf.is_deleted() for leaf in old)
    kept = sw.data_parallel(squares, optax.adam(0.1), mesh=mesh, donate=False)
    first = kept.init({"w": jnp.ones(3)})
    kept(first, BATCH)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(first))


def test_memory_does_not_double():
    size = 1 << 20
    step = sw.data_parallel(lambda p, b: p["w"].sum() + b["x"][:, 0], SGD, mesh=real_mesh(data=1))
    state = step.init({"w": jnp.zeros(size)})
    gc.collect()

    def held():
        return sum(x.nbytes for x in jax.live_arrays() if x.size == size and not x.is_deleted())

    before = held()
    for _ in range(3):
        state, _ = step(state, BATCH)
        assert held() == before


def test_params_given_to_init_stay_the_callers():
    params = {"w": jnp.ones(3)}
    step = sw.data_parallel(squares, SGD, mesh=real_mesh(data=1))
    step(step.init(params), BATCH)
    assert not params["w"].is_deleted()


@pytest.mark.parametrize("accumulate", [1, 4])
def test_there_is_one_reduction(accumulate):
    step = sw.data_parallel(
        with_metrics, optax.adam(0.1), has_aux=True, norms=True, accumulate=accumulate
    )
    state = step.init({"w": jnp.ones(3), "v": jnp.ones((4, 4))})
    batch = {"x": normal(64, 3), "y": normal(64)}
    report = sw.explain(step, state, batch, mesh=REAL)
    assert {use.name for use in report.collectives} == {"psum"}
    # JAX writes one operation for each leaf of what one call reduces; they are sent together.
    assert len(report.launches) == 1
    assert len({use.where.line for use in report.collectives}) == 1


def test_one_program_for_every_ragged_end_of_a_length():
    traced = 0

    def loss(params, batch):
        nonlocal traced
        traced += 1
        return squares(params, batch)

    step = sw.data_parallel(loss, SGD, mesh=REAL)
    state = step.init({"w": jnp.ones(3)})
    for rows in (9, 12, 15, 11):
        state, metrics = step(state, jax.tree.map(lambda x: x[:rows], BATCH))
        assert metrics["weight"] == rows
    assert traced <= 4  # twice to read what it means, once to see what it does, once to run it


@pytest.mark.parametrize("mesh", [real_mesh(data=4, model=2), sw.mesh(data=4, model=2)])
def test_a_loss_that_splits_the_model_is_refused(mesh):
    def split(params, batch):
        first = lax.axis_index("model") * 2
        part = lax.dynamic_slice_in_dim(params["w"], first, 2)
        x = lax.dynamic_slice_in_dim(batch["x4"], first, 2, axis=1)
        return (lax.psum(x @ part, "model") - batch["y"]) ** 2

    def whole(params, batch):
        return lax.pmean((batch["x4"] @ params["w"] - batch["y"]) ** 2, "model")

    batch = BATCH | {"x4": normal(16, 4)}
    params = {"w": jnp.full(4, 0.5)}
    with pytest.raises(sw.ShardingError, match=r"(?s)differs between the devices along 'model'"):
        gradient(split, mesh, batch, params)
    got, _ = gradient(whole, mesh, batch, params)
    plain = plain_gradient(lambda p, b: (b["x4"] @ p["w"] - b["y"]) ** 2, params, batch)
    np.testing.assert_allclose(got["w"], plain["w"], rtol=1e-5)


EXPLICIT = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))


@pytest.mark.parametrize("context", [None, EXPLICIT])
@pytest.mark.parametrize("mesh", [EXPLICIT, REAL, VIRTUAL])
@pytest.mark.parametrize(("rows", "accumulate"), [(16, 2), (10, 1)])
def test_meshes_of_every_kind_in_the_step_and_around_it(context, mesh, rows, accumulate):
    batch = jax.tree.map(lambda x: x[:rows], BATCH)
    with contextlib.nullcontext() if context is None else jax.set_mesh(context):
        step = sw.data_parallel(squares, optax.adam(0.1), mesh=mesh, accumulate=accumulate)
        state, _ = step(step.init({"w": jnp.full(3, 0.5)}), batch)
    tx = optax.adam(0.1)
    params = {"w": jnp.full(3, 0.5)}
    updates, _ = tx.update(plain_gradient(squares, batch=batch), tx.init(params))
    want = optax.apply_updates(params, updates)
    np.testing.assert_allclose(state.params["w"], want["w"], rtol=1e-4)


def test_batches_that_are_split_already():
    for rows in (16, 8):
        batch = jax.tree.map(lambda x, n=rows: jnp.asarray(x[:n]), BATCH)
        want, _ = gradient(squares, VIRTUAL, batch, accumulate=3)
        split = jax.device_put(batch, jax.NamedSharding(EXPLICIT, jax.P("data")))
        for mesh in (REAL, VIRTUAL, EXPLICIT):
            got, _ = gradient(squares, mesh, split, accumulate=3)
            np.testing.assert_allclose(got["w"], want["w"], rtol=1e-5)


@pytest.mark.parametrize("mesh", [real_mesh(data=1), REAL, VIRTUAL])
def test_an_array_that_is_there_twice_is_given_away_once(mesh):
    class Twin(nnx.Module):
        def __init__(self):
            self.online, self.target = (nnx.Linear(3, 1, rngs=nnx.Rngs(k)) for k in (0, 1))

        def __call__(self, x):
            return (self.online(x) - self.target(x) + x[:, :1])[:, 0]

    model = Twin()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    step = sw.nnx.data_parallel(object_squares, mesh=mesh)
    step(model, optimizer, BATCH)
    nnx.update(model.target, nnx.state(model.online))
    step(model, optimizer, BATCH)
    assert not np.array_equal(model.online.kernel[...], model.target.kernel[...])


def test_optimizers_that_want_to_know_the_loss():
    plateau = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1))
    sam = optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.01), sync_period=2)
    for tx in (plateau, sam):
        step = sw.data_parallel(squares, tx, mesh=REAL)
        state, _ = step(step.init({"w": jnp.ones(3)}), BATCH)
        assert np.isfinite(state.params["w"]).all()
        model = nnx.Sequential(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), lambda y: y[:, 0])
        optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
        assert sw.nnx.data_parallel(object_squares, mesh=REAL)(model, optimizer, BATCH)["updated"]


@pytest.mark.parametrize("mesh", [REAL, VIRTUAL])
@pytest.mark.parametrize("rows", [16, 10])
def test_shapes_are_enough_to_lower_it(mesh, rows):
    step = sw.data_parallel(squares, optax.adam(0.1), mesh=mesh)
    params = {"w": jnp.ones(3)}
    batch = jax.tree.map(lambda x: x[:rows], BATCH)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
    given = (step.init(params), batch), (jax.eval_shape(step.init, params), shapes)
    compiled = [step.lower(*arguments).compile() for arguments in given]
    one, other = (c.memory_analysis().argument_size_in_bytes for c in compiled)
    assert one == other


def test_a_step_inside_jit():
    step = sw.data_parallel(squares, SGD, mesh=VIRTUAL)
    state = step.init({"w": jnp.full(3, 0.5)})
    want, _ = gradient(squares, VIRTUAL)
    new, _ = jax.jit(lambda s, b: step(s, b))(state, BATCH)
    np.testing.assert_allclose(0.5 - np.asarray(new.params["w"]), want["w"], rtol=1e-5)
