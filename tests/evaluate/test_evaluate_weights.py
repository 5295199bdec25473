"""Weights: those that are not finite, and those of integers."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise._runtime.evaluate import Max, Mean, Sum
from shardwise._runtime.evaluate.reduce.plan import make_plan
from shardwise._runtime.evaluate.reduce.totals import NonFinite
from shardwise._runtime.evaluate.spans import Span

from .helpers import devices, evaluate


class TestNonFinite:
    @pytest.mark.parametrize(
        "bad",
        [
            {3: np.nan},
            {3: np.inf},
            {3: -np.inf},
            {3: np.inf, 8: np.inf},
            {3: np.inf, 8: -np.inf},
            {3: np.inf, 8: np.nan},
        ],
    )
    @pytest.mark.parametrize("kind", ["float32", "int32"])
    def test_weights_are_what_ieee_arithmetic_says(self, bad, kind, tmp_path):
        values, weights = np.full(20, 2, kind), np.ones(20, np.float32)
        for where, weight in bad.items():
            weights[where] = weight

        def fn(_, b):
            return {"mean": b, "sum": Sum(*b), "most": Max(*b)}

        with np.errstate(invalid="ignore"):
            total, weight = (values * weights).sum(), weights.sum()
            want = repr([float(x) for x in (total / weight, total, weight, weight)])
        runs = [{"mesh": devices(n)} for n in (1, 2, 8)]
        runs += [{"mesh": devices(n), "journal": tmp_path / "j.db"} for n in (2, 1)]
        for options in runs:
            result = evaluate(fn, None, (values, weights), batch=4, **options)
            got = result["mean"], result["sum"], result.weight["mean"], result.weight["sum"]
            assert repr(list(got)) == want
            assert result["most"] == 2
            assert not result.notes
            for name in ("mean", "sum"):
                found = result.nonfinite[name]
                assert (found.count, found.first) == (len(bad), 3)
        assert result.resumed == 20

    def test_weights_that_are_left_out_may_be_anything(self):
        mask = np.arange(6) < 4
        weights = np.float32([1, 1, 1, 1, np.inf, np.nan])
        result = evaluate(
            lambda _, b: (b[0], jnp.where(b[1], b[0], 0)), None, (weights, mask), batch=4
        )
        assert (result["mean"], result.weight["mean"]) == (1, 4)
        assert not result.nonfinite

    def test_infinity_over_a_negative_weight(self):
        x, w = np.float32([np.inf, 1, 1]), np.float32([1, -2, -2])
        result = evaluate(lambda _, b: {"mean": b, "sum": Sum(*b)}, None, (x, w))
        assert (result["mean"], result["sum"]) == (-math.inf, math.inf)
        assert result.weight["mean"] == -3

    def test_another_process_hears_of_them(self):
        shapes = [jax.ShapeDtypeStruct((4,), np.float32)] * 2
        plan = make_plan(Mean(*shapes), 4)

        def total(weights):
            (one,) = plan.totals().values()
            row = plan.step(Mean(jnp.ones(4), jnp.float32(weights)), jnp.full(4, True))
            one.add(plan.layout.unpack(bytes(np.asarray(row)))["mean"], Span(0, 4))
            return one

        own, other = total([1, 1, 1, 1]), total([1, 1, np.inf, 1])
        own.absorb(json.loads(json.dumps(other.export())), 4)
        assert own.weight() == math.inf
        assert math.isnan(own.values("mean")["mean"])
        assert own.non_finite() == NonFinite(1, 6)


NARROW = ["bool", "int8", "uint8", "int32", "uint32"]
WIDE = ["int32", "uint32", "int64", "uint64"]


def pairs(dtypes):
    """Each with itself on one device, and with the one after it on three, either way round."""
    for one, next_one in zip(dtypes, [*dtypes[1:], dtypes[0]], strict=True):
        yield from ((one, one, 1), (one, next_one, 3), (next_one, one, 3))


def of_all_sizes(dtype, size, seed):
    """Integers over the whole range of a dtype, its limits and zero among them."""
    if dtype == "bool":
        return np.arange(size) % 3 > 0
    rng, limits = np.random.default_rng(seed), np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, size, dtype, endpoint=True)
    x[:4] = limits.max, limits.min, limits.max, 0
    return x


def products(values, weights):
    return [v * w for v, w in zip(values.tolist(), weights.tolist(), strict=True)]


class TestIntegers:
    """Products of integers are exact, and so are their sums."""

    @pytest.mark.parametrize(("values", "weights", "count"), [*pairs(NARROW)])
    def test_up_to_32_bits(self, values, weights, count):
        self.compare(values, weights, count)

    @pytest.mark.parametrize(("values", "weights", "count"), [*pairs(WIDE)])
    def test_up_to_64_bits(self, values, weights, count):
        with jax.enable_x64(True):
            self.compare(values, weights, count)

    @staticmethod
    def compare(values, weights, count):
        values, weights = of_all_sizes(values, 203, 0), of_all_sizes(weights, 203, 1)

        def fn(_, b):
            return {"sum": Sum(*b), "mean": b}

        total, weight = sum(products(values, weights)), sum(map(int, weights))
        got = evaluate(fn, None, (values, weights), batch=32, mesh=devices(count))
        assert (got["sum"], type(got["sum"])) == (total, int)
        assert got["mean"] == float(Fraction(total, weight))
        assert (got.weight["mean"], type(got.weight["mean"])) == (weight, int)

    def test_one_large_step_of_the_largest(self):
        x = np.full(100_003, 2**31 - 1, np.int32)
        assert evaluate(lambda _, b: Sum(b, b), None, x)["sum"] == 100_003 * (2**31 - 1) ** 2

    def test_tokens_with_a_weight_per_example(self):
        values = of_all_sizes("int32", 60, 0).reshape(20, 3)
        weights = of_all_sizes("int32", 20, 1)
        got = evaluate(lambda _, b: Sum(*b), None, (values, weights), batch=8)
        assert got["sum"] == sum(products(values.reshape(-1), weights.repeat(3)))

    def test_many_of_them_and_a_journal(self, tmp_path):
        x, w = of_all_sizes("int32", 50, 0), of_all_sizes("uint32", 50, 1)
        want = sum(products(x, w))
        for count in (2, 1):
            got = evaluate(
                lambda _, b: {f"sum {k}": Sum(*b) for k in range(9)},
                None,
                (x, w),
                batch=16,
                mesh=devices(count),
                journal=tmp_path / "j.db",
            )
            assert set(got.metrics.values()) == {want}
        assert got.resumed == 50
