"""The numbers: against exact references, for every kind of value, weight and tail."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shardwise import ShardingError, ShardwiseError
from shardwise._runtime import evaluate as _evaluate
from shardwise._runtime.evaluate import Max, Mean, Min, Sum

from ..support import integers, normal, real_mesh
from .helpers import close, devices, evaluate, exact_mean, linear_data, squared_error

W = normal(3)


def identity(_, batch):
    return batch


@pytest.mark.parametrize("count", [1, 3])
def test_every_tail(count):
    x = normal(40)
    for length in range(1, 26):
        result = evaluate(identity, None, x[:length], batch=8, mesh=devices(count))
        assert result["mean"] == exact_mean(x[:length])
        assert result.count == result.weight["mean"] == length


def test_a_model_against_float64():
    data = linear_data(1003)
    want = np.mean((data["x"].astype(np.float64) @ W - data["y"]) ** 2)
    result = evaluate(squared_error, W, data, batch=64)
    assert close(result["mean"], want)
    assert float(result) == result["mean"]


def test_fewer_examples_than_devices():
    x = normal(3)
    result = evaluate(identity, None, x, batch=1, mesh=devices(8))
    assert (result["mean"], result.count, result.devices) == (exact_mean(x), 3, 8)


def test_one_example():
    assert evaluate(identity, None, np.float32([2.5]))["mean"] == 2.5


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float32"])
def test_weights_of_every_dtype(dtype):
    x, w = normal(101), integers(101, low=0, high=5).astype(dtype)
    result = evaluate(lambda _, b: b, None, (x, w), batch=16, mesh=devices(2))
    assert result["mean"] == exact_mean(x, w)
    assert result.weight["mean"] == w.sum()
    assert isinstance(result.weight["mean"], float if dtype == "float32" else int)


def test_fractional_weights_lose_nothing():
    x, w = np.abs(normal(1000)), np.abs(normal(1000, seed=1))
    result = evaluate(lambda _, b: b, None, (x, w), batch=1000)
    assert close(result["mean"], exact_mean(x, w), 1e-13)
    assert close(result.weight["mean"], math.fsum(w.tolist()), 1e-15)


def test_integers_with_fractional_weights():
    x, w = integers(100, low=-(2**31), high=2**31 - 1), np.abs(normal(100))
    result = evaluate(lambda _, b: b, None, (x, w), batch=32)
    assert close(result["mean"], exact_mean(x, w), 1e-12)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint32"])
def test_integers_are_summed_exactly(dtype):
    limits = (0, 2) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = integers(1000, low=limits[0], high=limits[1], dtype="int64").astype(dtype)

    def fn(_, batch):
        return {"sum": Sum(batch), "mean": batch, "least": Min(batch), "most": Max(batch)}

    result = evaluate(fn, None, x, batch=96, mesh=devices(2))
    wide = x.astype(object) + 0
    assert result["sum"] == sum(wide.tolist())
    assert isinstance(result["sum"], int)
    assert result["mean"] == exact_mean(x.astype(np.int64))
    assert (result["least"], result["most"]) == (int(x.min()), int(x.max()))


def test_a_sum_of_integers_past_64_bits_of_float():
    x = np.full(2**12, 2**31 - 1, np.int32)
    assert evaluate(lambda _, b: Sum(b), None, x, batch=2**10)["sum"] == (2**31 - 1) << 12


def test_tokens_with_a_mask():
    values, mask = normal(77, 9), integers(77, 9, low=0, high=2).astype(bool)
    result = evaluate(lambda _, b: b, None, (values, mask), batch=16, mesh=devices(2))
    assert result["mean"] == exact_mean(values, mask)
    assert result.weight["mean"] == mask.sum()
    assert result.count == 77


def test_tokens_without_and_with_a_weight_per_example():
    values, weights = normal(50, 4), np.abs(normal(50))
    result = evaluate(
        lambda _, b: {"plain": b[0], "rows": b, "column": Mean(b[0], b[1][:, None])},
        None,
        (values, weights),
        batch=16,
    )
    assert result["plain"] == exact_mean(values)
    want = exact_mean(values, np.repeat(weights, 4))
    assert close(result["rows"], want, 1e-13)
    assert result["column"] == result["rows"]
    assert result.weight["plain"] == 200


def test_all_kinds_in_nested_dictionaries():
    x = normal(100)
    result = evaluate(
        lambda _, b: {"a": {"b": Sum(b), "c": (b, b > 0)}, "d": Min(b, b > 0)}, None, x, batch=32
    )
    assert set(result) == {"a/b", "a/c", "d"}
    assert result["a/b"] == math.fsum(x.tolist())
    assert result["a/c"] == exact_mean(x[x > 0])
    assert result["d"] == x[x > 0].min()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_in_half_precision_is_summed_in_full(dtype):
    x = normal(3000, dtype=jnp.dtype(dtype))
    result = evaluate(lambda w, b: b * w, jnp.ones((), dtype), x, batch=512)
    assert result["mean"] == exact_mean(x.astype(np.float64))


def test_float64():
    with jax.enable_x64(True):
        x, w = normal(1000, dtype="float64"), np.abs(normal(1000, dtype="float64", seed=1))
        result = evaluate(
            lambda _, b: {"m": b[0], "w": b[:2], "s": Sum(b[2])},
            None,
            (np.abs(x), w, np.full(1000, 2**40)),
        )
    assert result["m"] == exact_mean(np.abs(x))
    assert close(result["w"], exact_mean(np.abs(x), w), 1e-15)
    assert result["s"] == 1000 * 2**40


def test_without_x64_wide_floats_are_rounded_and_wide_integers_checked():
    x = normal(100, dtype="float64")
    assert evaluate(identity, None, x, batch=32)["mean"] == exact_mean(x.astype(np.float32))
    tokens = np.arange(100)
    assert evaluate(lambda _, b: Sum(b), None, tokens, batch=32)["sum"] == 4950
    tokens[70] = 2**40
    with pytest.raises(ShardingError, match=r"data: 1099511627776 does not fit int32"):
        evaluate(lambda _, b: Sum(b), None, tokens, batch=32)


def test_strict_promotion(strict_promotion):
    data = {"x": normal(20), "k": integers(20, dtype="int8"), "h": normal(20, dtype="float16")}

    def fn(_, b):
        return {
            "a": (b["x"], b["k"]),
            "b": (b["k"], b["x"]),
            "c": b["h"],
            "d": Min(b["k"]),
            "e": (b["k"], b["k"] > 0),
            "f": Max(b["h"], b["k"]),
        }

    result = evaluate(fn, None, data, batch=8)
    assert result["e"] == exact_mean(data["k"][data["k"] > 0])


class TestNonFinite:
    def test_padding_never_leaks(self):
        # The last row is repeated as padding, and fn turns every repetition into NaN.
        def fn(_, batch, mask):
            return jnp.where(mask, batch, jnp.nan)

        x = normal(11)
        result = evaluate(fn, None, x, batch=8, mesh=devices(2))
        assert result["mean"] == exact_mean(x)
        assert not result.nonfinite

    def test_weight_zero_leaves_out_even_nan(self):
        x = np.float32([1, np.nan, 3, np.inf])
        for weights in (np.float32([1, 0, 1, 0]), np.array([True, False, True, False])):
            result = evaluate(lambda _, b: b, None, (x, weights))
            assert result["mean"] == 2.0
            assert not result.nonfinite

    @pytest.mark.parametrize(
        ("bad", "want"),
        [
            ([np.inf], math.inf),
            ([-np.inf, -np.inf], -math.inf),
            ([np.inf, -np.inf], math.nan),
            ([np.nan, np.inf], math.nan),
        ],
    )
    def test_one_in_the_data_is_reported(self, bad, want):
        x = normal(100)
        where = [70, 33][: len(bad)]
        x[where] = bad
        result = evaluate(identity, None, x, batch=16, mesh=devices(2))
        assert repr(result["mean"]) == repr(want)
        assert result.nonfinite["mean"].count == len(bad)
        assert result.nonfinite["mean"].first == min(where)
        told = f"{len(bad)} examples are not finite, the first is number {min(where)}"
        assert (told if len(bad) > 1 else f"1 example is not finite, number {where[0]}") in str(
            result
        )

    def test_tokens_are_counted_by_example(self):
        x = normal(20, 5)
        x[7, 1:3] = np.nan
        x[9, 0] = np.inf
        result = evaluate(identity, None, x, batch=8)
        assert (result.nonfinite["mean"].count, result.nonfinite["mean"].first) == (2, 7)

    def test_extremes(self):
        x = np.float32([1, np.inf, -2])
        result = evaluate(lambda _, b: {"least": Min(b), "most": Max(b)}, None, x)
        assert (result["least"], result["most"]) == (-2, math.inf)
        x[0] = np.nan
        assert math.isnan(evaluate(lambda _, b: Min(b), None, x)["min"])

    def test_no_weight_at_all_is_nan(self):
        x = normal(5)
        result = evaluate(lambda _, b: {"m": (b, b > 9), "x": Max(b, b > 9)}, None, x)
        assert math.isnan(result["m"])
        assert math.isnan(result["x"])
        assert result.weight["m"] == 0

    def test_a_sum_out_of_range_is_an_error_not_a_number(self):
        with pytest.raises(ShardwiseError, match="the values are finite, but their sum is not"):
            evaluate(identity, None, np.full(8, 3e38, np.float32), batch=8)


class TestModels:
    def test_linen_with_batch_statistics(self):
        class Net(nn.Module):
            @nn.compact
            def __call__(self, x, train):
                x = nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))
                return nn.Dropout(0.5, deterministic=not train)(x).sum(-1)

        x = normal(50, 3)
        variables = Net().init(jax.random.key(0), x[:1], train=False)
        variables["batch_stats"]["BatchNorm_0"]["mean"] += 0.5
        want = np.float64(Net().apply(variables, x, train=False)).mean()
        result = evaluate(lambda v, b: Net().apply(v, b, train=False), variables, x, batch=16)
        assert close(result["mean"], want)

    def test_linen_boxes_split_within_a_lane_alone(self):
        def net(*names):
            kernel = nn.with_partitioning(nn.initializers.lecun_normal(), names)
            return nn.Dense(4, kernel_init=kernel)

        x = normal(32, 4)
        mesh = real_mesh(data=4, model=2)
        split = net(None, "model")
        variables = split.init(jax.random.key(0), x[:1])

        def value(variables, batch):
            return split.apply(variables, batch).sum(-1)

        want = np.float64(value(variables, x)).mean()
        assert close(evaluate(value, variables, x, batch=8, mesh=mesh)["mean"], want)
        assert close(evaluate(value, nn.unbox(variables), x, batch=8)["mean"], want)
        for names, where in (((None, "model"), None), (("data", None), mesh)):
            variables = net(*names).init(jax.random.key(0), x[:1])
            with pytest.raises(ShardingError, match=r"'kernel'\] is annotated as split") as told:
                evaluate(value, variables, x, batch=8, mesh=where)
            assert "nn.unbox(state)" in str(told.value)

    def test_nnx_is_evaluated_in_evaluation_mode_and_left_as_it_was(self):
        class Net(nnx.Module):
            def __init__(self, rngs):
                self.dense = nnx.Linear(3, 4, rngs=rngs)
                self.norm = nnx.BatchNorm(4, rngs=rngs)
                self.drop = nnx.Dropout(0.5, rngs=rngs)

            def __call__(self, x):
                return self.drop(self.norm(self.dense(x))).sum(-1)

        model, x = Net(nnx.Rngs(0)), normal(50, 3)
        result = evaluate(lambda m, b: m(b), model, x, batch=16)
        assert model.norm.use_running_average is False
        assert model.drop.deterministic is False
        assert float(model.norm.mean[...].sum()) == 0
        model.eval()
        assert close(result["mean"], float(np.float64(model(x)).mean()))

    def test_nnx_modules_inside_a_tree(self):
        model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        x = normal(20, 3)
        state = {"model": model, "scale": 2.0, "name": "a string stays as it is"}
        result = evaluate(lambda s, b: s["model"](b)[:, 0] * s["scale"], state, x, batch=8)
        assert close(result["mean"], 2 * float(np.float64(model(x)).mean()))

    def test_a_state_split_over_a_model_axis(self):
        mesh = real_mesh(data=2, model=4)
        data = {"x": normal(100, 8), "y": normal(100)}
        w = normal(8)
        split = jax.device_put(w, jax.NamedSharding(mesh, jax.P("model")))
        want = evaluate(squared_error, w, data, batch=16, mesh=devices(1))["mean"]
        for state in (w, split, jax.device_put(w, jax.NamedSharding(mesh, jax.P("data")))):
            assert close(evaluate(squared_error, state, data, batch=16, mesh=mesh)["mean"], want)

    def test_the_data_axis_is_the_one_of_that_name(self):
        mesh = real_mesh(model=4, data=2)
        data = linear_data(100)
        got = evaluate(squared_error, W, data, batch=16, mesh=mesh)
        want = evaluate(squared_error, W, data, batch=16, mesh=devices(1))
        assert close(got["mean"], want["mean"])

    def test_the_state_is_an_argument_not_a_constant(self):
        compiled = []

        def fn(w, batch):
            compiled.append(w)
            return batch * w

        for scale in (1.0, 2.0, 3.0):
            assert evaluate(fn, scale, np.float32([1, 2, 3]))["mean"] == 2 * scale
        assert all(isinstance(w, jax.core.Tracer) for w in compiled)


def test_many_metrics_are_what_each_is_alone():
    x = normal(1003)
    x[17] = np.nan

    def metrics(_, batch):
        few = {"int": Sum(batch > 0), "weighted": (batch, batch**2)}
        means = {f"mean {k}": batch * k for k in range(12)}
        return few | means | {f"max {k}": Max(batch - k, batch < k) for k in range(9)}

    got = evaluate(metrics, None, x, batch=64, mesh=devices(4))
    assert len(got) == 23
    for name in ("int", "weighted", "mean 0", "mean 11", "max 0", "max 8"):
        alone = evaluate(lambda _, b, name=name: {name: metrics(_, b)[name]}, None, x, batch=64)
        assert got[name] == alone[name] or (math.isnan(got[name]) and math.isnan(alone[name]))
        assert got.nonfinite.get(name) == alone.nonfinite.get(name)
    assert got.nonfinite["mean 3"].first == 17


class NoTree:
    def merge(self, other):
        return self

    def compute(self):
        return 0


class TestSurroundings:
    def test_a_mesh_of_the_caller_is_no_matter(self):
        want = evaluate(squared_error, W, linear_data(20), mesh=devices(4))
        kinds = (AxisType.Explicit,)
        with jax.set_mesh(jax.make_mesh((8,), ("data",), axis_types=kinds)):
            got = evaluate(squared_error, W, linear_data(20), mesh=devices(4))
        assert got.metrics == want.metrics

    def test_what_the_caller_does_meanwhile_is_on_no_mesh(self, tmp_path):
        here = jax.device_put(jnp.arange(40.0), jax.devices()[0])

        class Rows:
            def __len__(self):
                return 40

            def __getitem__(self, index):
                return here[index] * 2

        def watch(snapshot):
            assert float(here.sum()) == 780

        got = _evaluate.evaluate(
            lambda _, b: b, None, Rows(), batch=4, journal=tmp_path / "j.db", progress=watch
        )
        assert got["mean"] == 39

    def test_a_mesh_of_its_own_has_names_in_fn(self):
        mesh = real_mesh(data=2, model=4)

        def fn(_, batch):
            return jax.lax.with_sharding_constraint(batch, P(None, "model")).sum(-1)

        assert evaluate(fn, None, np.ones((6, 4), np.float32), mesh=mesh)["mean"] == 4

    def test_inside_jit_it_is_refused(self):
        with pytest.raises(ShardwiseError, match=r"outside jax\.jit"):
            jax.jit(lambda w: evaluate(squared_error, w, linear_data(20))["mean"])(W)


class TestRefusals:
    @pytest.mark.parametrize(
        ("fn", "message"),
        [
            (lambda _, b: b.mean(), r"'mean': a scalar \(float32\), expected \[4\] or \[4, ...\]"),
            (lambda _, b: b[:2], r"values of shape \[2\] for a batch of 4"),
            (lambda _, b: (b, b[:2]), r"weights of shape \[2\] do not fit values of \[4\]"),
            (lambda _, b: {"z": b + 1j}, "'z': values of dtype complex64, expected real numbers"),
            (lambda _, b: b[:, None][:, :0], r"\[4, 0\], which are empty"),
            (lambda _, b: {}, "it returned an empty dictionary"),
            (lambda _, b: {"a/b": b, "a": {"b": b}}, "two metrics of the name 'a/b'"),
            (lambda _, b: {0: b, "a": b}, r"names 0 \(int\), 'a' \(str\)(?s:.)*are strings"),
            (lambda _, b: {"in": {None: b, "a": b}}, r"names None \(NoneType\), 'a' \(str\)"),
            (lambda _, b: Sum({"a": b}), "sw.Sum of a dictionary of 'a'"),
            (lambda _, b: NoTree(), "NoTree, which has merge and compute but is not a pytree"),
            (lambda _, b: (b, b, b), "it returned a tuple of 3"),
            (lambda _, b: None, "it returned a NoneType"),
        ],
    )
    def test_what_fn_returns(self, fn, message):
        with pytest.raises(ShardingError, match=message):
            evaluate(fn, None, normal(4))

    def test_weights_fit_in_every_dimension(self):
        with pytest.raises(ShardingError, match=r"\[4, 3\] do not fit values of \[4, 2\]"):
            evaluate(lambda _, b: (b, jnp.ones((len(b), 3))), None, normal(4, 2))

    def test_a_length_that_happens_to_agree(self):
        with pytest.raises(ShardingError, match=r"values of shape \[4\] for a batch of 8"):
            evaluate(lambda _, b: b.sum(0), None, normal(20, 4), batch=4)

    def test_a_function_of_one_size(self):
        def fn(_, batch):
            return batch.reshape(4)

        x = normal(20)
        assert evaluate(fn, None, x, batch=4)["mean"] == exact_mean(x)

    def test_every_metric_at_fault_is_listed(self):
        with pytest.raises(ShardingError) as caught:
            evaluate(lambda _, b: {"a": b.sum(), "b": b, "c": b[None]}, None, normal(4))
        assert str(caught.value).count("\n    - ") == 2

    def test_batch(self):
        for batch in (0, -1, 1.5, "8"):
            with pytest.raises(ShardingError, match="at least 1"):
                evaluate(identity, None, normal(4), batch=batch)

    def test_mesh(self):
        with pytest.raises(ShardingError, match=r"mesh is \[1\]"):
            evaluate(identity, None, normal(4), mesh=[1])

    def test_a_virtual_mesh_stands_for_the_local_devices(self):
        from shardwise import UnsupportedError, mesh

        assert evaluate(identity, None, np.float32([1, 2]), mesh=mesh(data=64))["mean"] == 1.5
        with pytest.raises(UnsupportedError, match="'model': 2"):
            evaluate(identity, None, normal(4), mesh=mesh(data=4, model=2))


def test_values_that_cross_examples_are_refused():
    """[rows, 1] - [rows] is [rows, rows]: each example's value would depend on its neighbours."""
    data = {"x": normal(12, 3), "y": normal(12)}

    def crossed(w, batch):
        return (batch["x"] @ w - batch["y"]) ** 2

    with pytest.raises(ShardingError, match=r"'mean' has shape \[4, 4\] for 4 rows and \[8, 8\]"):
        evaluate(crossed, normal(3, 1), data, batch=4)
