"""State that a loss changes: statistics of the batch, and whatever else a model holds."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from jax import lax

import shardwise as sw

from ..support import assert_same, real_mesh
from .steps import BATCH, REAL, SGD, VIRTUAL, object_squares


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
        sw.ShardingError, match=r"batch_stats\.BatchNorm_0\.mean differs between"
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


class Counting(nnx.Module):
    def __init__(self):
        self.linear, self.calls = nnx.Linear(3, 1, rngs=nnx.Rngs(0)), nnx.Variable(jnp.int32(0))

    def __call__(self, x):
        self.calls[...] += 1
        return self.linear(x)[:, 0]


@pytest.mark.parametrize("mesh", [REAL, VIRTUAL])
def test_state_that_depends_on_no_row_is_updated_whatever_the_padding(mesh):
    model = Counting()
    optimizer = nnx.Optimizer(model, SGD, wrt=nnx.Param)
    step = sw.nnx.data_parallel(object_squares, mesh=mesh)
    for _ in range(2):
        step(model, optimizer, jax.tree.map(lambda x: x[:13], BATCH))
    assert model.calls[...] == 2


class Spectral(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.SpectralNorm(nn.Dense(1))(x, update_stats=True)[:, 0]


def test_a_norm_of_the_params_is_updated_whatever_the_padding():
    def loss(variables, batch):
        y, new = Spectral().apply(variables, batch["x"], mutable=["batch_stats"])
        return (y - batch["y"]) ** 2, new

    def after(mesh):
        step = sw.data_parallel(loss, SGD, mutable="batch_stats", mesh=mesh)
        rows = jax.tree.map(lambda x: x[:13], BATCH)
        return step(step.init(Spectral().init(jax.random.key(0), BATCH["x"])), rows)[0].variables

    assert_same(after(REAL), after(real_mesh(data=1)))


def test_state_that_stops_the_gradient_depends_on_the_rows_all_the_same():
    def loss(variables, batch):
        mean = lax.stop_gradient(lax.pmean(batch["x"].mean(), "data"))
        return (batch["x"] @ variables["params"]["w"]) ** 2, {"stats": {"mean": mean}}

    step = sw.data_parallel(loss, SGD, mutable="stats", mesh=REAL, statistics="shard")
    state = step.init({"params": {"w": jnp.ones(3)}, "stats": {"mean": jnp.float32(0)}})
    with pytest.raises(sw.ShardingError, match=r"it updates stats\.mean, and the batch does not"):
        step(state, jax.tree.map(lambda x: x[:13], BATCH))


def test_state_that_is_made_of_the_keys_of_rows_depends_on_the_padding():
    def loss(variables, batch, keys):
        noise = jax.vmap(jax.random.normal)(keys).mean()
        return (batch["x"] @ variables["params"]["w"]) ** 2, {"stats": {"noise": noise}}

    options = {"mutable": "stats", "rng": "example", "statistics": "shard"}
    step = sw.data_parallel(loss, SGD, mesh=REAL, **options)
    state = step.init({"params": {"w": jnp.ones(3)}, "stats": {"noise": jnp.float32(0)}})
    with pytest.raises(sw.ShardingError, match=r"it updates stats\.noise, and the batch does not"):
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


def test_what_a_virtual_mesh_is_told_to_be_instead_works():
    def loss(params, batch):
        everybody = lax.all_gather(batch["x"] @ params["w"], "data", tiled=True)
        return (batch["x"] @ params["w"] - everybody.mean()) ** 2

    def run(**options):
        step = sw.data_parallel(loss, SGD, **options)
        return step(step.init({"w": jnp.ones(3)}), BATCH)[1]["loss"]

    with pytest.raises(
        sw.ShardingError, match=r"it has an all_gather(.|\n)*sw.mesh\(data=8\) with"
    ):
        run(mesh=sw.mesh(data=4), accumulate=2)
    assert_same(run(mesh=sw.mesh(data=8)), run(mesh=sw.mesh(data=1)))
