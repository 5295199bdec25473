"""The five functions of the seeds, against the seeds' own code written out with Flax and NumPy."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh

import shardwise as sw
from shardwise import primitives
from shardwise.primitives import (
    data_parallel_step,
    shard_map_psum,
    shard_map_simulate,
    shard_map_vs_vmap,
    sharded_eval_loss,
)

N, D = 16, 3


def numbers(*shape, seed=0):
    return np.random.RandomState(seed).normal(size=shape).astype(np.float32)


X, Y, TARGETS = numbers(N, D), numbers(N, seed=1), numbers(N, 2, seed=2)


def real_mesh(*shape, names=("data", "model")):
    return Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), names[: len(shape)])


MESHES = {
    "none": lambda: None,
    "real 1": lambda: real_mesh(1),
    "real 2": lambda: real_mesh(2),
    "real 8": lambda: real_mesh(8),
    "real 4x2": lambda: real_mesh(4, 2),
    "real explicit": lambda: jax.make_mesh((4,), ("batch",), axis_types=(AxisType.Explicit,)),
    "virtual 1": lambda: sw.mesh(data=1),
    "virtual 4": lambda: sw.mesh(data=4),
    "virtual 8": lambda: sw.mesh(data=8),
    "virtual 2x4": lambda: sw.mesh(a=2, b=4),
    "virtual explicit": lambda: AbstractMesh((4,), ("data",), (AxisType.Explicit,)),
}
meshes = pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES.keys())
close = functools.partial(np.testing.assert_allclose, rtol=2e-6, atol=2e-6)


def dense(seed, features, example):
    """A Dense layer in NumPy, with the parameters that Flax makes."""
    params = nn.Dense(features).init(jax.random.key(seed), example)["params"]
    kernel, bias = np.asarray(params["kernel"]), np.asarray(params["bias"])
    return lambda x: x @ kernel + bias


def refusal(error, call):
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


class TestShardedEvalLoss:
    def expected(self, seed=3, shards=8):
        model = dense(seed, 1, X[:1])
        pairs = zip(np.split(X, shards), np.split(Y, shards), strict=True)
        return [np.mean([np.mean((model(x).reshape(-1) - y) ** 2) for x, y in pairs])]

    @meshes
    def test_every_mesh_gives_the_mean_of_the_shards_losses(self, mesh):
        loss = sharded_eval_loss(3.0, X, Y, 8.0, mesh=mesh())
        assert loss.shape == (1,)
        close(loss, self.expected())

    @pytest.mark.parametrize("shards", [1, 2, 4, 16])
    @pytest.mark.parametrize("form", ["shard_map", "loop", "vmap"])
    def test_the_forms_agree(self, form, shards):
        loss = sharded_eval_loss(3, X, Y, shards, form=form)
        assert loss.shape == (1,)
        close(loss, self.expected(shards=shards))

    def test_the_seeds_own_loop(self):
        model = nn.Dense(1)
        params = model.init(jax.random.PRNGKey(3), jnp.asarray(X)[:1])
        total = jnp.float32(0)
        for xs, ys in zip(jnp.split(jnp.asarray(X), 4), jnp.split(jnp.asarray(Y), 4), strict=True):
            total += jnp.mean((model.apply(params, xs).reshape(-1) - ys) ** 2)
        close(sharded_eval_loss(3, X, Y, 4), [total / 4])

    @pytest.mark.parametrize("form", ["shard_map", "loop", "vmap"])
    def test_the_forward_pass_sees_one_example_to_initialise_and_then_one_shard(
        self, form, monkeypatch
    ):
        seen = []
        forward = nn.Dense.__call__
        monkeypatch.setattr(
            nn.Dense, "__call__", lambda self, x: seen.append(x.shape) or forward(self, x)
        )
        sharded_eval_loss(3, X, Y, 4, form=form)
        assert seen[0] == (1, D)
        assert set(seen[1:]) == {(N // 4, D)}

    def test_a_mesh_is_for_shard_map(self):
        call = functools.partial(sharded_eval_loss, 3, X, Y, 4)
        assert refusal(ValueError, lambda: call(form="loop", mesh=sw.mesh(data=2))) == (
            "argument 'mesh': found a mesh\n"
            "  form='loop' runs on this device alone.\n"
            "  Remedy: use form='shard_map'."
        )
        assert refusal(ValueError, lambda: call(form="pmap")) == (
            "argument 'form': found 'pmap'\n  It must be 'shard_map', 'loop' or 'vmap'."
        )

    def test_it_works_under_jit_and_grad(self):
        model = dense(3, 1, X[:1])
        loss = jax.jit(lambda y: sharded_eval_loss(3, X, y, 4)[0])
        close(loss(Y), self.expected()[0])
        close(jax.grad(loss)(Y), 2 * (Y - model(X).reshape(-1)) / N)


class TestShardMapSimulate:
    @meshes
    def test_every_mesh_gives_the_dense_layer(self, mesh):
        out = shard_map_simulate(5.0, X, 8.0, 4.0, mesh=mesh())
        assert out.shape == (N * 4,)
        close(out, dense(5, 4, X[:2])(X).reshape(-1))

    @pytest.mark.parametrize("shards", [1, 2, 16])
    def test_the_seeds_own_loop(self, shards):
        model, x, chunk = nn.Dense(2), jnp.asarray(X), N // shards
        params = model.init(jax.random.PRNGKey(5), x[:chunk])
        slices = [jax.lax.dynamic_slice_in_dim(x, i * chunk, chunk) for i in range(shards)]
        expected = jnp.concatenate([model.apply(params, shard) for shard in slices]).reshape(-1)
        close(shard_map_simulate(5, X, shards, 2), expected)

    def test_the_model_is_initialised_on_the_first_shard(self, monkeypatch):
        seen = []
        init = nn.Dense.init
        monkeypatch.setattr(
            nn.Dense, "init", lambda self, key, x: seen.append(np.asarray(x)) or init(self, key, x)
        )
        shard_map_simulate(5, X, 4, 2)
        (first,) = seen
        np.testing.assert_array_equal(first, X[:4])


def seed_step(model, optimizer, devices):
    """The step of the seed, as it is printed there."""

    def loss_fn(model, x, y):
        return jnp.mean((model(x) - y) ** 2)

    shards = zip(np.split(X, devices), np.split(TARGETS, devices), strict=True)
    losses, grads = zip(*[nnx.value_and_grad(loss_fn)(model, *s) for s in shards], strict=True)
    optimizer.update(model, jax.tree.map(lambda *g: sum(g) / float(devices), *grads))
    return jnp.array([float(jnp.mean(jnp.stack(losses)))])


def model_and_optimizer(optimizer):
    model = nnx.Linear(D, 2, rngs=nnx.Rngs(7))
    return model, nnx.Optimizer(model, optimizer, wrt=nnx.Param)


class TestDataParallelStep:
    def expected(self):
        model = nnx.Linear(D, 2, rngs=nnx.Rngs(7))
        predictions = X @ np.asarray(model.kernel[...]) + np.asarray(model.bias[...])
        return [np.mean((predictions - TARGETS) ** 2)]

    @meshes
    def test_every_mesh_gives_the_loss_before_the_update(self, mesh):
        loss = data_parallel_step(7.0, X, TARGETS, 8.0, 0.1, mesh=mesh())
        assert loss.shape == (1,)
        close(loss, self.expected())

    @pytest.mark.parametrize("devices", [1, 2, 16])
    def test_the_seeds_own_loop(self, devices):
        expected = seed_step(*model_and_optimizer(optax.sgd(0.1)), devices)
        close(data_parallel_step(7, X, TARGETS, devices, 0.1), expected)

    @pytest.mark.parametrize("mesh", ["none", "real 8", "virtual 2x4"])
    def test_the_model_is_updated_once_with_the_mean_gradient(self, mesh):
        momentum = optax.sgd(0.5, momentum=0.9)
        mine, theirs = model_and_optimizer(momentum), model_and_optimizer(momentum)
        shards = primitives._split("num_devices", 8, x=jnp.asarray(X), y=jnp.asarray(TARGETS))
        for step in (1, 2):
            loss = primitives._update(*mine, shards, MESHES[mesh]())
            close(loss, seed_step(*theirs, 8)[0])
            close(mine[0].kernel[...], theirs[0].kernel[...], rtol=1e-5)
            close(mine[0].bias[...], theirs[0].bias[...], rtol=1e-5)
            assert mine[1].step[...] == step

    @pytest.mark.parametrize("lr", [0.5, np.float32(0.5), jnp.float32(0.5), 1, -0.5, 0.0])
    def test_the_learning_rate_is_the_optimizers(self, lr, monkeypatch):
        rates = []
        sgd = optax.sgd
        monkeypatch.setattr(optax, "sgd", lambda rate: rates.append(rate) or sgd(rate))
        data_parallel_step(7, X, TARGETS, 4, lr)
        assert rates == [float(lr)]
        assert type(rates[0]) is float


class TestShardMapVsVmap:
    @meshes
    def test_every_mesh_gives_two_equal_rows(self, mesh):
        out = shard_map_vs_vmap(X, mesh=mesh())
        assert out.shape == (2, N)
        close(out, [(X**2).sum(1)] * 2)
        close(out[0], out[1])

    def test_the_example_of_the_seed(self):
        out = shard_map_vs_vmap(jnp.array([[1.0, 0.0], [0.0, 1.0]]))
        np.testing.assert_array_equal(out, [[1.0, 1.0], [1.0, 1.0]])

    def test_integers_stay_integers(self):
        out = shard_map_vs_vmap([[1, 2], [3, 4]])
        assert out.dtype == jnp.int32
        np.testing.assert_array_equal(out, [[5, 25]] * 2)


class TestShardMapPsum:
    @meshes
    def test_every_mesh_gives_the_sum(self, mesh):
        out = shard_map_psum(Y, mesh=mesh())
        assert out.shape == ()
        close(out, Y.sum())

    def test_the_example_of_the_seed(self):
        assert shard_map_psum(jnp.array([1.0, 2.0, 3.0])) == 6.0

    def test_integers_and_lists(self):
        assert shard_map_psum([1, 2, 3, 4], mesh=sw.mesh(data=4)) == 10


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray, np.ndarray.tolist, np.float64])
def test_arrays_and_lists_of_any_kind(kind):
    close(sharded_eval_loss(0, kind(X), kind(Y), 4), sharded_eval_loss(0, X, Y, 4))


@pytest.mark.parametrize("four", [4, 4.0, np.int64(4), np.float32(4), jnp.int32(4), jnp.float32(4)])
def test_whole_numbers_of_any_kind(four):
    out = shard_map_simulate(four, X, four, four)
    close(out, dense(4, 4, X[:4])(X).reshape(-1))


def test_integers_in_the_data_are_taken_as_floats():
    x, y = np.arange(8).reshape(4, 2), np.arange(4)
    expected = sharded_eval_loss(0, x.astype(np.float32), y.astype(np.float32), 2)
    close(sharded_eval_loss(0, x, y, 2), expected)


COUNTS = {
    "num_shards": lambda n: sharded_eval_loss(0, X, Y, n),
    "num_shards of simulate": lambda n: shard_map_simulate(0, X, n, 2),
    "features": lambda n: shard_map_simulate(0, X, 2, n),
    "num_devices": lambda n: data_parallel_step(0, X, TARGETS, n, 0.1),
}
counts = pytest.mark.parametrize("key", COUNTS)


@counts
@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (0, "It must be 1 or more."),
        (-2.0, "It must be 1 or more."),
        (2.5, "It must be an integer."),
        (float("nan"), "It must be an integer."),
        (float("inf"), "It must be an integer."),
    ],
)
def test_counts_are_whole_and_positive(key, value, rule):
    message = refusal(ValueError, lambda: COUNTS[key](value))
    assert message == f"argument {key.split()[0]!r}: found {value}\n  {rule}"


@counts
@pytest.mark.parametrize("value", ["4", None, True, [4], 4j, np.array([4.0])])
def test_counts_are_numbers(key, value):
    message = refusal(TypeError, lambda: COUNTS[key](value))
    assert message == f"argument {key.split()[0]!r}: found {value!r}\n  It must be a number."


def test_seeds_are_whole():
    for call in (
        lambda: sharded_eval_loss(0.5, X, Y, 2),
        lambda: shard_map_simulate(0.5, X, 2, 2),
        lambda: data_parallel_step(0.5, X, TARGETS, 2, 0.1),
    ):
        assert refusal(ValueError, call) == ("argument 'seed': found 0.5\n  It must be an integer.")


@pytest.mark.parametrize("lr", [float("nan"), float("inf"), -float("inf")])
def test_the_learning_rate_is_finite(lr):
    message = refusal(ValueError, lambda: data_parallel_step(0, X, TARGETS, 2, lr))
    assert message == f"argument 'lr': found {lr}\n  It must be a finite number."


def test_the_learning_rate_is_a_number():
    message = refusal(TypeError, lambda: data_parallel_step(0, X, TARGETS, 2, "fast"))  # pyright: ignore[reportArgumentType]
    assert message == "argument 'lr': found 'fast'\n  It must be a number."


@pytest.mark.parametrize(
    ("call", "name", "rows"),
    [
        (lambda n: sharded_eval_loss(0, X, Y, n), "num_shards", "x"),
        (lambda n: shard_map_simulate(0, X, n, 2), "num_shards", "x"),
        (lambda n: data_parallel_step(0, X, TARGETS, n, 0.1), "num_devices", "x_batch"),
    ],
)
@pytest.mark.parametrize(("count", "remedy"), [(3, "2 or 4"), (12.0, "8 or 16"), (20, "16")])
def test_shards_divide_the_rows(call, name, rows, count, remedy):
    message = refusal(sw.ShardingError, lambda: call(count))
    assert message == (
        f"argument '{name}': {int(count)} shards do not divide the 16 rows of '{rows}'\n"
        f"  All shards have the same number of rows.\n"
        f"  Remedy: use {remedy}."
    )


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda mesh: sharded_eval_loss(0, X, Y, 4, mesh=mesh), "4 shards"),
        (lambda mesh: shard_map_simulate(0, X, 4, 2, mesh=mesh), "4 shards"),
        (lambda mesh: data_parallel_step(0, X, TARGETS, 4, 0.1, mesh=mesh), "4 shards"),
        (lambda mesh: shard_map_vs_vmap(X[:4], mesh=mesh), "the 4 rows of 'x'"),
        (lambda mesh: shard_map_psum(Y[:4], mesh=mesh), "the 4 elements of 'x'"),
    ],
)
def test_devices_divide_the_shards(call, what):
    for mesh in (sw.mesh(data=8), real_mesh(4, 2)):
        assert refusal(sw.ShardingError, lambda: call(mesh)) == (
            f"argument 'mesh': 8 devices do not divide {what}\n"
            f"  Every device takes the same number of them.\n"
            f"  Remedy: use 4."
        )
    with pytest.raises(sw.ShardingError, match="mesh is 8"):
        call(8)


def test_examples_and_targets_are_as_many():
    assert refusal(sw.ShardingError, lambda: sharded_eval_loss(0, X, Y[:12], 2)) == (
        "argument 'y': found length 12, but 'x' has length 16\n"
        "  There is one target for each example.\n"
        "  Remedy: cut the longer of the two."
    )
    message = refusal(ValueError, lambda: data_parallel_step(0, X[:8], TARGETS, 2, 0.1))
    assert "argument 'y_batch': found length 16, but 'x_batch' has length 8" in message


ARRAYS = {
    "x": (lambda v: sharded_eval_loss(0, v, Y, 2), "(N, D)"),
    "y": (lambda v: sharded_eval_loss(0, X, v, 2), "(N,)"),
    "x of simulate": (lambda v: shard_map_simulate(0, v, 2, 2), "(N, D)"),
    "x_batch": (lambda v: data_parallel_step(0, v, TARGETS, 2, 0.1), "(N, D_in)"),
    "y_batch": (lambda v: data_parallel_step(0, X, v, 2, 0.1), "(N, D_out)"),
    "x of vmap": (lambda v: shard_map_vs_vmap(v), "(B, d)"),
    "x of psum": (lambda v: shard_map_psum(v), "(N,)"),
}
arrays = pytest.mark.parametrize("key", ARRAYS)


@arrays
def test_arrays_have_the_right_rank(key):
    call, shape = ARRAYS[key]
    for wrong in (np.float32(1), np.zeros((2, 2, 2)), np.zeros((4, 1)), np.zeros(4)):
        if wrong.ndim == len(shape.strip("(,)").split(",")):
            continue
        assert refusal(sw.ShardingError, lambda: call(wrong)) == (
            f"argument {key.split()[0]!r}: found shape {wrong.shape}\n  It must have shape {shape}."
        )


@arrays
def test_arrays_are_not_empty(key):
    call, shape = ARRAYS[key]
    empty = np.zeros((0,) if shape == "(N,)" else (0, 3))
    assert refusal(sw.ShardingError, lambda: call(empty)) == (
        f"argument {key.split()[0]!r}: found shape {empty.shape}\n"
        f"  No dimension of {shape} may be empty."
    )


@arrays
@pytest.mark.parametrize("value", ["text", ["a", "b"], None, [[1, 2], [3]], {"x": 1}])
def test_arrays_hold_numbers(key, value):
    call, _ = ARRAYS[key]
    assert refusal(TypeError, lambda: call(value)) == (
        f"argument {key.split()[0]!r}: found a {type(value).__name__}\n"
        f"  It must be an array of numbers, or nested lists of them."
    )


def test_losses_take_real_numbers():
    assert refusal(TypeError, lambda: sharded_eval_loss(0, X + 0j, Y, 2)) == (
        "argument 'x': found complex64\n  It must be real."
    )
