"""Metric objects with `merge` and `compute`: a local one, and those of CLU and metrax."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise import ShardingError

from ..optional import needed
from ..support import normal
from .helpers import Average, close, devices, evaluate, exact_mean


@flax.struct.dataclass
class Histogram:
    """Counts in bins: a state that is an array, and a value that is one."""

    counts: Any

    @classmethod
    def from_values(cls, values, mask):
        bins = jnp.clip(jnp.floor(values).astype(jnp.int32) + 4, 0, 7)
        return cls(jnp.zeros(8, jnp.int32).at[bins].add(mask.astype(jnp.int32)))

    def merge(self, other):
        return Histogram(self.counts + other.counts)

    def compute(self):
        return self.counts


@flax.struct.dataclass
class Counter:
    """Merges and computes with `jax.numpy`, which would make 32 bits of 64."""

    count: Any

    def merge(self, other):
        return Counter(jnp.add(self.count, other.count))

    def compute(self):
        return jnp.where(self.count > 0, self.count, 0)


def test_counts_of_64_bits():
    fn = lambda _, b, mask: Counter(jnp.sum(mask, dtype=jnp.int32) * (1 << 29))  # noqa: E731
    assert evaluate(fn, None, np.ones(12), batch=2)["counter"] == 12 << 29


@flax.struct.dataclass
class Collection:
    average: Average
    histogram: Histogram

    def merge(self, other):
        return Collection(self.average.merge(other.average), self.histogram.merge(other.histogram))

    def compute(self):
        return {"average": self.average.compute(), "histogram": self.histogram.compute()}


@flax.struct.dataclass
class Everything:
    """Keeps all values: its state grows with the batch, and merging is joining."""

    values: Any
    mask: Any

    def merge(self, other):
        return Everything(
            np.concatenate([self.values, other.values]), np.concatenate([self.mask, other.mask])
        )

    def compute(self):
        return np.median(self.values[self.mask])


X = normal(1003)


def test_the_protocol():
    result = evaluate(
        lambda _, b, mask: {"loss": b, "average": Average.from_values(b, mask)}, None, X, batch=16
    )
    assert close(result["average"], exact_mean(X), 1e-5)
    assert "average" not in result.weight


def test_the_same_bits_on_any_number_of_devices():
    def fn(_, batch, mask):
        return Average.from_values(batch, mask)

    results = [evaluate(fn, None, X, batch=16, mesh=devices(n)).metrics for n in (1, 3, 8)]
    assert results[0] == results[1] == results[2]
    assert list(results[0]) == ["average"]


def test_arrays_and_collections():
    def fn(_, batch, mask):
        return Collection(Average.from_values(batch, mask), Histogram.from_values(batch, mask))

    want = np.histogram(np.clip(X, -4, 3.9), np.arange(-4, 5))[0]
    result = evaluate(fn, None, X, batch=16, mesh=devices(2))
    assert set(result) == {"average", "histogram"}
    assert np.array_equal(result["histogram"], want)
    assert result.to_dict()["metrics"]["histogram"] == want.tolist()
    nested = evaluate(lambda s, b, mask: {"a": fn(s, b, mask), "b": b}, None, X, batch=16)
    assert set(nested) == {"a/average", "a/histogram", "b"}


def test_a_state_that_grows_is_merged_in_the_order_of_the_examples():
    result = evaluate(lambda _, b, mask: Everything(b, mask), None, X, batch=16, mesh=devices(3))
    assert result["everything"] == np.median(X)


def test_counts_do_not_wrap_and_totals_do_not_drift():
    def fn(_, batch):
        return Average(jnp.sum(batch), jnp.int32(2**30))

    result = evaluate(fn, None, np.full(64, 0.1, np.float32), batch=8)
    assert result["average"] == pytest.approx(6.4 / 2**33, rel=1e-6)


def test_padding_needs_a_mask():
    def fn(_, batch):
        return {"a": Average(jnp.sum(batch), jnp.int32(len(batch)))}

    with pytest.raises(ShardingError) as caught:
        evaluate(fn, None, X, batch=16)
    assert "it returns metric objects (a) and takes no mask" in str(caught.value)
    assert "def fn(state, batch, mask)" in str(caught.value)
    with pytest.raises(ShardingError, match="takes no mask"):
        evaluate(fn, None, iter([X]), batch=17)
    # 1003 is 17 times 59: without padding there is nothing to keep out.
    assert close(evaluate(fn, None, X, batch=17, mesh=devices(2))["a"], exact_mean(X), 1e-5)


def test_clu():
    metrics = needed("clu.metrics", "that its metrics are added up")
    logits, labels = normal(1003, 5), np.arange(1003, dtype=np.int32) % 5
    average = metrics.Average.from_output("loss")
    both = metrics.Collection.create(accuracy=metrics.Accuracy, loss=average)

    def fn(_, batch, mask):
        return both.single_from_model_output(
            logits=batch[0], labels=batch[1], loss=batch[0][:, 0], mask=mask
        )

    result = evaluate(fn, None, (logits, labels), batch=64, mesh=devices(2))
    assert close(result["accuracy"], (logits.argmax(-1) == labels).mean())
    assert close(result["loss"], exact_mean(logits[:, 0]), 1e-5)


def test_metrax():
    metrax = needed("metrax", "that its metrics are added up")
    logits, labels = normal(1003), (np.arange(1003) % 2).astype(np.int32)

    def fn(_, batch, mask):
        scores = 1 / (1 + jnp.exp(-batch[0]))
        weights = mask.astype(jnp.float32)
        return {
            "mse": metrax.MSE.from_model_output(scores, batch[1], weights),
            "auc": metrax.AUCROC.from_model_output(scores, batch[1], weights),
        }

    result = evaluate(fn, None, (logits, labels), batch=64, mesh=devices(2))
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert close(result["mse"], np.mean((scores - labels) ** 2), 1e-5)
    assert 0.4 < result["auc"] < 0.6
