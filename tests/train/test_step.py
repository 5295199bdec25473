"""What a step promises besides the numbers: randomness, weights, memory, one reduction."""

import contextlib
import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax import lax
from jax.sharding import AxisType

import shardwise as sw

from ..support import assert_same, normal, real_mesh

VIRTUAL, REAL = sw.mesh(data=8), real_mesh(data=8)
SGD = optax.sgd(1.0)
BATCH = {"x": normal(16, 3), "y": normal(16, seed=1)}


def squares(params, batch):
    return (batch["x"] @ params["w"] - batch["y"]) ** 2


def gradient(loss, mesh, batch=BATCH, params=None, **options):
    """What one step of plain SGD took off the params, and the metrics."""
    params = {"w": jnp.full(3, 0.5)} if params is None else params
    step = sw.data_parallel(loss, SGD, mesh=mesh, **options)
    state, metrics = step(step.init(params), batch)
    return jax.tree.map(lambda a, b: np.asarray(a - b), params, state.params), metrics


def plain_gradient(loss, params=None, batch=BATCH):
    params = {"w": jnp.full(3, 0.5)} if params is None else params
    return jax.tree.map(np.asarray, jax.grad(lambda p: loss(p, batch).mean())(params))


# --- losses of every form


def scalar(params, batch):
    return squares(params, batch).mean()


def with_metrics(params, batch):
    errors = jnp.abs(batch["x"] @ params["w"] - batch["y"])
    weights = jnp.arange(errors.shape[0]) * 0 + 2
    return squares(params, batch), {
        "error": errors,
        "small": errors < 1,
        "double": (errors, weights),
        "mean": errors.mean(),
    }


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


# --- statistics


class Normed(nn.Module):
    axis: str | None

    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=False, axis_name=self.axis)(x)


def normed(axis, **options):
    def loss(variables, batch):
        y, new = Normed(axis).apply(variables, batch["x"], mutable=["batch_stats"])
        return (y**2).mean(-1) + y[:, 0] ** 3, new

    step = sw.data_parallel(loss, SGD, mutable="batch_stats", **options)
    variables = Normed(None).init(jax.random.key(0), BATCH["x"])
    return step, step.init(variables)


@pytest.mark.parametrize("mesh", [real_mesh(data=1), REAL, VIRTUAL])
def test_statistics_of_a_shard_are_refused(mesh):
    step, state = normed(None, mesh=mesh)
    with pytest.raises(
        sw.ShardingError, match=r"batch_stats\.BatchNorm_0\.mean comes out"
    ) as error:
        step(state, BATCH)
    assert "axis_name='data'" in str(error.value)


class NormedObject(nnx.Module):
    def __init__(self, axis):
        self.first = nnx.Linear(3, 4, use_bias=False, rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(4, axis_name=axis, momentum=0.5, rngs=nnx.Rngs(1))
        self.last = nnx.Linear(4, 1, rngs=nnx.Rngs(2))

    def __call__(self, x):
        return self.last(jnp.tanh(self.norm(self.first(x))))[:, 0]


def object_squares(model, batch):
    return (model(batch["x"]) - batch["y"]) ** 2


@pytest.mark.parametrize("mesh", [REAL, VIRTUAL])
def test_statistics_of_nnx_are_those_of_the_batch(mesh):
    plain, model = NormedObject(None), NormedObject("data")
    own = nnx.Optimizer(plain, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    step = sw.nnx.data_parallel(object_squares, mesh=mesh)
    update = nnx.jit(
        lambda m, o, b: o.update(m, nnx.grad(lambda m: object_squares(m, b).mean())(m))
    )
    for _ in range(4):
        update(plain, own, BATCH)
        step(model, optimizer, BATCH)
    got, want = (jax.device_get(nnx.to_pure_dict(nnx.state(m))) for m in (model, plain))
    assert_same(got, want)
    assert abs(want["norm"]["mean"]).max() > 1e-3
    with pytest.raises(sw.ShardingError, match=r"model\.norm\.mean"):
        sw.nnx.data_parallel(object_squares, mesh=mesh)(plain, own, BATCH)


class Mixed(nnx.Module):
    """Shared layers, arrays that are no variables, a variable that is a tree, one that changes."""

    def __init__(self):
        self.first = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
        self.again = self.first
        self.scale = nnx.data(jnp.full(3, 2.0))
        self.seen = nnx.BatchStat({"rows": jnp.zeros(()), "unused": jnp.zeros(2)})

    def __call__(self, x):
        rows = lax.psum(jnp.float32(len(x)), "data")
        self.seen.set_value({**self.seen.get_value(), "rows": rows})
        return (self.again(jnp.tanh(self.first(x))) * self.scale).sum(-1)


@pytest.mark.parametrize("mesh", [REAL, VIRTUAL])
def test_whatever_an_nnx_model_holds_is_updated_in_place(mesh):
    model, plain = Mixed(), Mixed().first
    optimizer = nnx.Optimizer(model, SGD, wrt=nnx.Param)
    kernel = model.first.kernel
    sw.nnx.data_parallel(object_squares, mesh=mesh)(model, optimizer, BATCH)

    def loss(layer):
        y = (layer(jnp.tanh(layer(BATCH["x"]))) * 2).sum(-1)
        return ((y - BATCH["y"]) ** 2).mean()

    want = plain.kernel[...] - nnx.grad(loss)(plain).kernel[...]
    assert model.first.kernel is model.again.kernel is kernel
    np.testing.assert_allclose(kernel[...], want, rtol=1e-5, atol=1e-6)
    assert model.seen.get_value()["rows"] == len(BATCH["y"])
    np.testing.assert_array_equal(model.scale, 2)


def test_a_tree_in_a_variable_may_be_another_one_the_next_time():
    class Noted(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
            self.note = nnx.Variable({"a": jnp.float32(1)})

    def loss(model, batch):
        note = model.note.get_value()
        return model.linear(batch["x"])[:, 0] * 0 + note.get("a", 0) + 100 * note.get("b", 0)

    model = Noted()
    optimizer = nnx.Optimizer(model, SGD, wrt=nnx.Param)
    step = sw.nnx.data_parallel(loss, mesh=REAL)
    for note, want in (({"a": 1.0}, 1), ({"b": 2.0}, 200), ({"a": 3.0, "b": 1.0}, 103), ({}, 0)):
        model.note.set_value({name: jnp.float32(x) for name, x in note.items()})
        assert step(model, optimizer, BATCH)["loss"] == want


def test_statistics_of_a_shard_may_be_meant():
    step, state = normed(None, mesh=REAL, statistics="shard")
    state, _ = step(state, BATCH)
    parts = BATCH["x"].reshape(8, 2, 3)
    want = 0.01 * parts.mean(1).mean(0)
    np.testing.assert_allclose(
        state.collections["batch_stats"]["BatchNorm_0"]["mean"], want, atol=1e-6
    )


def test_statistics_without_an_update_are_no_matter():
    def loss(variables, batch):
        norm = nn.BatchNorm(use_running_average=True)
        return (norm.apply(variables, batch["x"]) ** 2).mean(-1)

    step = sw.data_parallel(loss, SGD, mesh=REAL)
    state = step.init(nn.BatchNorm(use_running_average=True).init(jax.random.key(0), BATCH["x"]))
    state, metrics = step(state, jax.tree.map(lambda x: x[:13], BATCH))
    assert metrics["weight"] == 13


@pytest.mark.parametrize("mesh", [REAL, VIRTUAL])
def test_padding_never_enters_statistics(mesh):
    step, state = normed("data", mesh=mesh)
    with pytest.raises(sw.ShardingError, match="multiple of 8 rows"):
        step(state, jax.tree.map(lambda x: x[:13], BATCH))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_padding_enters_no_statistics_of_a_shard_either(accumulate):
    step, state = normed(None, mesh=REAL, statistics="shard", accumulate=accumulate)
    with pytest.raises(sw.ShardingError, match="padding would enter"):
        step(state, jax.tree.map(lambda x: x[:13], BATCH))


def test_accumulation_does_not_cut_statistics():
    step, state = normed("data", mesh=REAL, accumulate=2)
    with pytest.raises(sw.ShardingError, match="accumulate=2 cuts the batch"):
        step(state, BATCH)


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


# --- precision, memory, traffic


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
    assert traced <= 2  # once to see what it does, once to run it


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
