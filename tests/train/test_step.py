"""What a step promises of losses, weights, randomness and collectives."""

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax

import shardwise as sw
from shardwise._runtime.train.step.runner import AHEAD

from ..support import assert_same, normal, real_mesh
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

# --- losses of every form


def scalar(params, batch):
    return squares(params, batch).mean()


@pytest.mark.parametrize("mesh", [VIRTUAL, REAL, real_mesh(data=1)])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_of_every_form_have_one_gradient(mesh, accumulate):
    want = plain_gradient(squares)
    errors = np.abs(BATCH["x"] @ np.full(3, 0.5) - BATCH["y"])
    for loss, options in ((squares, {}), (scalar, {}), (with_metrics, {"has_aux": True})):
        got, metrics = gradient(loss, mesh, accumulate=accumulate, **options)
        assert_same(got, want)
        np.testing.assert_allclose(metrics["loss"], (errors**2).mean(), rtol=1e-6)
        assert metrics["weight"] == 16
        assert metrics["updated"]
    np.testing.assert_allclose(metrics["error"], errors.mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["small"], (errors < 1).mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["double"], errors.mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["mean"], errors.mean(), rtol=1e-6)


def test_norms_on_request():
    got, metrics = gradient(squares, REAL, norms=True)
    np.testing.assert_allclose(metrics["grad_norm"], np.linalg.norm(got["w"]), rtol=1e-5)
    np.testing.assert_allclose(metrics["param_norm"], np.linalg.norm(0.5 - got["w"]), rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 7, 9])
@pytest.mark.parametrize("mesh", [VIRTUAL, REAL])
def test_padding_makes_no_nan(rows, mesh):
    """The square root has no derivative at zero, which a row of zeros would bring in."""

    def loss(params, batch):
        return jnp.sqrt(jnp.abs(batch["x"] @ params["w"]))

    batch = {"x": normal(rows, 3) + 3}
    got, metrics = gradient(loss, mesh, batch)
    assert_same(got, plain_gradient(loss, batch=batch))
    assert metrics["weight"] == rows


@pytest.mark.parametrize("mesh", [VIRTUAL, REAL])
def test_weights_that_are_all_zero_update_nothing(mesh):
    def loss(params, batch):
        return squares(params, batch), batch["weight"]

    step = sw.data_parallel(loss, optax.adam(0.1), mesh=mesh)
    first = step.init({"w": jnp.full(3, 0.5)})
    before = jax.device_get(first)
    state, metrics = step(first, {**BATCH, "weight": np.zeros(16)})
    assert not metrics["updated"]
    assert metrics["weight"] == 0
    np.testing.assert_array_equal(state.params["w"], before.params["w"])
    assert_same(jax.device_get(state.opt_state), before.opt_state)
    state, metrics = step(state, {**BATCH, "weight": np.eye(16)[3]})
    assert metrics["updated"]
    assert np.isfinite(state.params["w"]).all()


@pytest.mark.parametrize("mesh", [real_mesh(data=1), REAL, VIRTUAL])
def test_weights_that_are_all_zero_leave_objects_as_they_are(mesh):
    def loss(model, batch):
        return object_squares(model, batch), batch["w"]

    model = nnx.Sequential(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), lambda y: y[:, 0])
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    step = sw.nnx.data_parallel(loss, mesh=mesh)
    step(model, optimizer, BATCH | {"w": np.ones(16, np.float32)})
    before = jax.device_get(nnx.to_pure_dict(nnx.state((model, optimizer))))
    metrics = step(model, optimizer, BATCH | {"w": np.zeros(16, np.float32)})
    after = jax.device_get(nnx.to_pure_dict(nnx.state((model, optimizer))))
    assert not metrics["updated"]
    jax.tree.map(np.testing.assert_array_equal, after, before)
    assert np.isfinite(step(model, optimizer, BATCH | {"w": np.ones(16)})["loss"])


@pytest.mark.parametrize("weight", [2.0**-16, 1e6])
def test_half_precision_has_room_whatever_the_weights(weight):
    batch = {"x": np.asarray(BATCH["x"], np.float16), "y": np.asarray(BATCH["y"], np.float16)}
    params = {"w": jnp.full(3, 0.5, jnp.float16)}

    def weighted(params, batch):
        return squares(params, batch), jnp.full(batch["y"].shape, weight, jnp.float32)

    got, _ = gradient(weighted, REAL, batch, params)
    want, _ = gradient(squares, REAL, batch, params)
    assert np.abs(want["w"]).max() > 0.1
    np.testing.assert_allclose(got["w"], want["w"], rtol=2e-3, atol=1e-3)


def test_the_sum_of_a_mask_is_a_whole_number():
    def loss(params, batch):
        return squares(params, batch), batch["mask"]

    for mesh in (sw.mesh(data=3), REAL):
        step = sw.data_parallel(loss, SGD, mesh=mesh, accumulate=3)
        state = step.init({"w": jnp.zeros(3)})
        for seed in range(6):
            mask = np.random.default_rng(seed).random(16) < 0.7
            state, metrics = step(state, {**BATCH, "mask": mask})
            assert metrics["weight"] == mask.sum()


def test_weights_may_be_negative():
    weight = np.r_[-np.ones(12), np.ones(3), 0].astype(np.float32)

    def loss(params, batch):
        return squares(params, batch), batch["weight"]

    got, metrics = gradient(loss, REAL, {**BATCH, "weight": weight})
    assert metrics["weight"] == -9
    assert metrics["updated"]
    want = plain_gradient(lambda p, b: squares(p, b) * weight * 16 / -9)
    assert_same(got, want)


# --- randomness


def masks(mesh, rows, **options):
    """Which numbers the loss drew for each row: the gradient holds them, row by row."""

    def loss(params, batch, keys):
        if keys.ndim:
            drawn = jax.vmap(lambda key: jax.random.uniform(key))(keys)
        else:
            drawn = jax.random.uniform(keys, batch["one"].shape[:1])
        return (batch["one"] @ params["w"]) * drawn

    batch = {"one": np.eye(rows, dtype=np.float32)}
    got, _ = gradient(loss, mesh, batch, {"w": jnp.zeros(rows)}, **options)
    return got["w"] * rows


def test_keys_per_example_do_not_depend_on_the_devices():
    want = masks(real_mesh(data=1), 13, rng="example")
    assert len(set(want.tolist())) == 13
    for mesh in (REAL, VIRTUAL, sw.mesh(data=3)):
        np.testing.assert_allclose(masks(mesh, 13, rng="example"), want, rtol=1e-6)
    np.testing.assert_allclose(masks(REAL, 13, rng="example", accumulate=2), want, rtol=1e-6)
    assert not np.allclose(masks(REAL, 13, rng="example", seed=1), want)


def test_padding_has_the_key_of_the_row_that_it_copies():
    """A key of its own might drop every unit of a copy: 0 / 0, and a NaN for everybody."""

    def loss(params, batch, keys):
        kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.4, (3,)))(keys)
        return ((batch["x"] * kept / kept.sum(-1, keepdims=True)) @ params["w"]) ** 2

    def kept(seed, row):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 0), row)
        return bool(jax.random.bernoulli(key, 0.4, (3,)).any())

    rows = 3
    seed = next(s for s in range(99) if [kept(s, k) for k in range(4)] == [True] * 3 + [False])
    batch = jax.tree.map(lambda x: x[:rows], BATCH)
    options = {"batch": batch, "rng": "example", "seed": seed}
    want, _ = gradient(loss, real_mesh(data=1), **options)
    for mesh in (REAL, VIRTUAL):
        got, _ = gradient(loss, mesh, **options)
        np.testing.assert_allclose(got["w"], want["w"], rtol=1e-5)


def test_keys_per_shard_differ_between_shards_and_steps():
    drawn = masks(REAL, 16, rng="shard")
    assert len(set(drawn.tolist())) == 16
    np.testing.assert_allclose(masks(VIRTUAL, 16, rng="shard"), drawn, rtol=1e-6)
    step = sw.data_parallel(
        lambda p, b, key: b["x"][:, 0] * 0 + p["w"].sum() * jax.random.uniform(key),
        SGD,
        rng="shard",
    )
    state, first = step(step.init({"w": jnp.ones(1)}), BATCH)
    _, second = step(state, BATCH)
    assert first["loss"] != second["loss"]


class Noisy(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.linear(x))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_streams_of_nnx_are_split_and_advance_once(accumulate):
    model = Noisy(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.0), wrt=nnx.Param)
    key = jax.random.key_data(model.dropout.rngs.key[...])
    kept = []

    def loss(model, batch):
        y = model(batch["x"])
        return y.mean(-1), {f"row {k}": (y[:, k] != 0, jnp.ones(y.shape[0])) for k in range(8)}

    step = sw.nnx.data_parallel(loss, mesh=REAL, has_aux=True, accumulate=accumulate)
    batch = {"x": np.ones((16, 3), np.float32)}
    for number in (1, 2):
        metrics = step(model, optimizer, batch)
        kept.append([float(metrics[f"row {k}"]) for k in range(8)])
        assert int(model.dropout.rngs.count[...]) == number
    assert kept[0] != kept[1]
    # Shards that shared a key would keep the same units: all multiples of 1/2 would be seen.
    assert any(value * 2 % 1 for value in kept[0])
    np.testing.assert_array_equal(jax.random.key_data(model.dropout.rngs.key[...]), key)


# --- collectives in the loss


def contrast(params, batch, axis="data"):
    """Every row against all rows of the batch: it needs the rows of the other devices."""
    own = batch["x"] * params["w"]
    everyone = lax.all_gather(own, axis, tiled=True) if axis else own
    index = lax.axis_index(axis) * own.shape[0] if axis else 0
    logits = own @ everyone.T
    return optax.softmax_cross_entropy_with_integer_labels(logits, index + jnp.arange(own.shape[0]))


@pytest.mark.parametrize("mesh", [REAL, VIRTUAL, real_mesh(data=2)])
def test_a_loss_with_collectives_of_its_own(mesh):
    got, _ = gradient(contrast, mesh)
    assert_same(got, plain_gradient(functools.partial(contrast, axis=None)))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("mesh", [real_mesh(data=2), REAL, VIRTUAL])
def test_weights_and_collectives_together(mesh, dtype):
    """The gradient of one device's loss by another's rows has that device's weights in it."""

    def loss(params, batch, mean=lambda x: lax.pmean(x.mean(0), "data")):
        y = batch["x"] @ params["w"]
        return ((y - mean(y)) ** 2 - batch["y"]) ** 2, batch["weight"]

    def whole(params):
        values, weights = loss(params, batch, lambda y: y.mean(0))
        return (values * weights).sum() / weights.sum()

    weight = np.linspace(0, 3, 16, dtype=np.float32) ** 3
    batch = jax.tree.map(lambda x: jnp.asarray(x, dtype), BATCH) | {"weight": weight}
    params = {"w": jnp.full(3, 0.5, dtype)}
    got, _ = gradient(loss, mesh, batch, params)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(got["w"], jax.grad(whole)(params)["w"], rtol=tolerance)


def test_what_rows_share_is_not_padded_or_cut():
    with pytest.raises(sw.ShardingError, match="all_gather over 'data'"):
        gradient(contrast, REAL, jax.tree.map(lambda x: x[:13], BATCH))
    with pytest.raises(sw.ShardingError, match="all_gather over 'data'"):
        gradient(contrast, REAL, jax.tree.map(lambda x: x[:13], BATCH), statistics="shard")
    with pytest.raises(sw.ShardingError, match="accumulate=2"):
        gradient(contrast, REAL, accumulate=2)


def test_keys_may_be_rows():
    def loss(params, batch):
        return squares(params, batch) * jax.vmap(jax.random.uniform)(batch["key"])

    batch = {**BATCH, "key": jax.random.split(jax.random.key(0), 16)}
    got, _ = gradient(loss, REAL, batch)
    assert_same(got, plain_gradient(loss, batch=batch))


def test_a_scan_with_a_carry_of_zeros_is_no_matter():
    """With the check on, JAX refuses a carry that begins the same everywhere and then differs."""

    def loss(params, batch):
        def add(total, column):
            return total + column * params["w"].sum(), None

        return lax.scan(add, jnp.zeros(batch["x"].shape[0]), batch["x"].T)[0] ** 2

    got, _ = gradient(loss, REAL)
    assert_same(got, plain_gradient(loss))


def test_it_does_not_run_far_ahead_of_virtual_devices():
    # jaxlib 0.10 stops for ever with more than 32 computations before one CPU device.
    def slow(params, batch):
        w = lax.fori_loop(0, 9000, lambda _, w: jnp.tanh(w @ w), lax.stop_gradient(params["w"]))
        return batch["x"] @ (params["w"] + w)[0]

    step = sw.data_parallel(slow, SGD, mesh=REAL)
    state, losses = step.init({"w": jnp.ones((3, 3))}), []
    for _ in range(24):
        state, metrics = step(state, BATCH)
        losses.append(metrics["loss"])
        assert all(loss.is_ready() for loss in losses[:-AHEAD])


class TestStatesThatAStepMade:
    """They are known by identity and not looked at again; anything else is."""

    def test_nothing_is_put_anywhere_again(self, monkeypatch):
        step = sw.data_parallel(_square, optax.adam(0.1))
        state = step.init({"w": jnp.ones(3)})
        batch = {"x": np.ones((8, 3), np.float32)}
        state, _ = step(state, batch)

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("a state that was in its place was put there again")

        monkeypatch.setattr("shardwise._runtime.train.step.runner.put", refuse)
        monkeypatch.setattr("shardwise._runtime.train.step.runner.without_duplicates", refuse)
        for _ in range(3):
            state, _ = step(state, batch)
        assert int(state.step) == 4

    def test_params_replaced_in_a_state_count(self):
        step = sw.data_parallel(_square, optax.sgd(0.0))
        batch = {"x": np.ones((8, 3), np.float32)}
        state, _ = step(step.init({"w": jnp.ones(3)}), batch)
        state.params["w"] = np.full(3, 5.0, np.float32)  # not an array of JAX, and elsewhere
        state, metrics = step(state, batch)
        assert float(metrics["loss"]) == 225.0
        assert state.params["w"].tolist() == [5.0] * 3

    def test_one_array_for_two_params_is_copied(self):
        step = sw.data_parallel(lambda p, b: b["x"] @ p["v"] + b["x"] @ p["w"], optax.sgd(1.0))
        batch = {"x": np.ones((8, 3), np.float32)}
        state, _ = step(step.init({"v": jnp.ones(3), "w": jnp.zeros(3)}), batch)
        state.params["v"] = state.params["w"]
        state, _ = step(state, batch)
        assert state.params["v"].tolist() == state.params["w"].tolist() == [-2.0] * 3

    def test_a_state_given_twice_is_refused(self):
        step = sw.data_parallel(_square, optax.sgd(0.1))
        batch = {"x": np.ones((8, 3), np.float32)}
        state, _ = step(step.init({"w": jnp.ones(3), "v": jnp.ones(3)}), batch)
        step(state, batch)
        with pytest.raises(sw.ShardingError, match="donated their memory to its result"):
            step(state, batch)

    def test_one_array_that_somebody_else_deleted_is_named(self):
        step = sw.data_parallel(_square, optax.sgd(0.1))
        batch = {"x": np.ones((8, 3), np.float32)}
        state, _ = step(step.init({"v": jnp.ones(3), "w": jnp.ones(3)}), batch)
        state.params["w"].delete()
        with pytest.raises(sw.ShardingError, match="its arrays are deleted"):
            step(state, batch)

    def test_another_step_looks_for_itself(self):
        first = sw.data_parallel(_square, optax.sgd(0.1))
        second = sw.data_parallel(_square, optax.sgd(0.1), mesh=sw.mesh(data=4))
        batch = {"x": np.ones((8, 3), np.float32)}
        state, _ = first(first.init({"w": jnp.ones(3)}), batch)
        state, _ = second(state, batch)
        want, _ = first(first.init({"w": jnp.ones(3)}), batch)
        want, _ = first(want, batch)
        np.testing.assert_allclose(state.params["w"], want.params["w"], rtol=1e-6)

    def test_what_a_step_noted_is_not_pickled(self):
        step = sw.data_parallel(_square, optax.sgd(0.1))
        batch = {"x": np.ones((8, 3), np.float32)}
        state, _ = step(step.init({"w": jnp.ones(3)}), batch)
        again = pickle.loads(pickle.dumps(state))
        assert "_made" not in vars(again)
        assert step(again, batch)[1]["loss"] == step(state, batch)[1]["loss"]


def _square(params, batch):
    return (batch["x"] @ params["w"]) ** 2


@pytest.mark.parametrize("rows", [16, 19])
def test_a_loss_that_crosses_rows_is_refused(rows):
    """[rows, 1] - [rows] is [rows, rows]: another mean on every mesh, and nothing looks wrong."""
    batch = {"x": normal(rows, 3), "y": normal(rows)}

    def crossed(params, batch):
        return (batch["x"] @ params - batch["y"]) ** 2

    def straight(params, batch):
        return (batch["x"] @ params - batch["y"][:, None]) ** 2 * jnp.ones((1, 2))

    step = sw.data_parallel(crossed, optax.sgd(0.1), mesh=sw.mesh(data=8))
    with pytest.raises(sw.ShardingError, match=r"the loss: it has shape \[(2, 2|3, 3)\] for"):
        step(step.init(normal(3, 1)), batch)
    # As many values per row as there are rows on a device is nothing bad by itself.
    step = sw.data_parallel(straight, optax.sgd(0.1), mesh=sw.mesh(data=8))
    assert step(step.init(normal(3, 1)), batch)[1]["weight"] == 2 * rows


def test_a_loss_of_objects_that_crosses_rows_is_refused():
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    step = sw.nnx.data_parallel(lambda m, b: (m(b["x"]) - b["y"]) ** 2, mesh=sw.mesh(data=4))
    with pytest.raises(sw.ShardingError, match="the loss: it has shape"):
        step(model, optimizer, {"x": normal(16, 3), "y": normal(16)})
