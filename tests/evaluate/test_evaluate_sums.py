"""The arithmetic: sums on the device and on the host, against exact answers."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise._runtime.evaluate import Max, Sum
from shardwise._runtime.evaluate.reduce import fold
from shardwise._runtime.evaluate.reduce.exact import ExactSum

from ..support import integers, normal
from .helpers import Lazy, devices, evaluate

finite = st.floats(allow_nan=False, allow_infinity=False)


class TestExactSum:
    @given(st.lists(finite | st.integers()))
    def test_it_is_exact_in_any_order(self, values):
        want = sum(map(Fraction, values))
        for order in (values, values[::-1]):
            total = ExactSum()
            for value in order:
                total.add(value)
            assert Fraction(total.units, 1 << 1074) == want

    @given(st.lists(finite, max_size=20))
    def test_it_rounds_once(self, values):
        total = ExactSum()
        for value in values:
            total.add(value)
        try:
            want = math.fsum(values)
        except OverflowError:
            return
        assert float(total) == want

    def test_quotients(self):
        assert ExactSum(1).over(ExactSum(3)) == 1 / 3
        assert math.isnan(ExactSum(1).over(ExactSum(0)))
        assert float(ExactSum(1 << 4000)) == math.inf
        assert float(ExactSum(-1 << 4000)) == -math.inf


@jax.jit
def _sum(values):
    return fold.sum_floats(fold.split(values, jnp.float32))


def exactly(pair) -> float:
    return float(pair[0]) + float(pair[1])


class TestOnTheDevice:
    @pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 63, 64, 65, 1000, 100_003])
    def test_floats(self, size):
        x = np.abs(normal(size))
        want = math.fsum(x.tolist())
        assert abs(exactly(_sum(x)) - want) <= 1e-13 * want

    @pytest.mark.parametrize("spread", [0, 10, 30])
    def test_floats_of_all_sizes_and_signs(self, spread):
        rng = np.random.default_rng(spread)
        x = (rng.normal(size=50_000) * 2.0 ** rng.uniform(-spread, spread, 50_000)).astype("f4")
        scale = math.fsum(np.abs(x).tolist())
        assert abs(exactly(_sum(x)) - math.fsum(x.tolist())) <= 1e-13 * scale

    def test_the_small_next_to_the_large(self):
        x = np.float32([2**24] + [1.0] * 1000 + [-(2**24)])
        assert exactly(_sum(x)) == 1000
        assert float(jnp.sum(x)) != 1000  # what a plain sum makes of it

    def test_products(self):
        a, b = normal(10_000), normal(10_000, seed=1)
        pairs = jax.jit(lambda a, b: fold.multiply(fold.split(a, "f4"), fold.split(b, "f4")))(a, b)
        exact = a.astype(np.float64) * b
        got = np.float64(pairs[0]) + np.float64(pairs[1])
        assert np.array_equal(got, exact)

    @pytest.mark.parametrize("dtype", ["int32", "uint32"])
    def test_integers(self, dtype):
        limits = np.iinfo(dtype)
        x = integers(100_003, low=limits.min, high=limits.max, dtype="int64").astype(dtype)
        ((high, low),) = jax.jit(fold.sum_integers)(x)[0]
        word = (int(high) << 32) | int(low)
        assert (word - (1 << 64) if word >> 63 else word) == sum(x.tolist())

    @pytest.mark.parametrize("dtype", ["int64", "uint64"])
    def test_integers_of_64_bits(self, dtype):
        limits = np.iinfo(dtype)
        x = np.array([limits.max] * 50 + [limits.min] * 20 + [limits.max // 3] * 30, dtype)
        with jax.enable_x64(True):
            metrics = lambda _, b: {  # noqa: E731
                "sum": Sum(b),
                "weighted": Sum(b, jnp.ones(b.shape, jnp.int64)),
                "max": Max(b),
            }
            got = evaluate(metrics, None, x, batch=16)
        assert got["sum"] == sum(x.tolist())
        assert got["weighted"] == sum(x.tolist())
        assert got["max"] == limits.max
        assert type(got["max"]) is int


MANY = 200_000_000
CYCLE = 1 << 24


def scrambled(index):
    """A value in [0, 1) for every index: each multiple of 2^-24 once per cycle of 2^24."""
    return ((index * 10_368_889) & (CYCLE - 1)).astype(jnp.float32) * jnp.float32(1 / CYCLE)


def scrambled_sum(count: int) -> Fraction:
    """The exact sum of the first `count` values."""
    cycles, rest = divmod(count, CYCLE)
    last = np.arange(rest, dtype=np.int64) * 10_368_889 & (CYCLE - 1)
    return Fraction(cycles * (CYCLE * (CYCLE - 1) // 2) + int(last.sum()), CYCLE)


def test_very_many_values():
    """A thousand values from each example, made on the device; `benchmarks` has a billion."""

    def fn(_, batch):
        return scrambled(batch[:, None] * 1000 + jnp.arange(1000, dtype=jnp.int32))

    data = np.arange(MANY // 1000, dtype=np.int32)
    result = evaluate(fn, None, data, batch=2000, mesh=devices(2))
    want = scrambled_sum(MANY) / MANY
    assert result.weight["mean"] == MANY
    assert abs(Fraction(result["mean"]) - want) <= Fraction(1, 10**12) * want


def test_a_running_float32_total_for_comparison():
    values = np.random.default_rng(0).normal(2.3, 0.1, 20_000_000).astype(np.float32)
    running = float(np.cumsum(values, dtype=np.float32)[-1])
    want = math.fsum(values.tolist())
    assert abs(running / want - 1) > 1e-5
    result = evaluate(lambda _, b: Sum(b), None, values, batch=1 << 20)
    assert abs(result["sum"] / want - 1) < 1e-15


def test_many_examples_one_value_each():
    """Example by example, from an array that is never in memory."""
    count = 50_000_000
    data = Lazy(count, dtype=np.dtype(np.int32))
    result = evaluate(lambda _, b: scrambled(b), None, data, batch=1 << 20, mesh=devices(3))
    want = scrambled_sum(count) / count
    assert abs(Fraction(result["mean"]) - want) <= Fraction(1, 10**12) * want
    assert sorted(data.reads) == data.reads


def test_the_order_of_steps_does_not_matter():
    values = normal(1000).tolist()
    totals = []
    for seed in range(3):
        random.Random(seed).shuffle(values)
        total = ExactSum()
        for value in values:
            total.add(value)
        totals.append(total.units)
    assert len(set(totals)) == 1
