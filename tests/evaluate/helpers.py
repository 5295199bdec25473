"""What the tests of `evaluate` share: meshes, exact references, a metric object."""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from shardwise._runtime import evaluate as _evaluate

from ..support import normal, real_mesh

evaluate = functools.partial(_evaluate.evaluate, progress=False)


def devices(count: int) -> jax.sharding.Mesh:
    return real_mesh(data=count)


def linear_data(length: int, width: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": normal(length, width, seed=seed), "y": normal(length, seed=seed + 1)}


def squared_error(w: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    return (batch["x"] @ w - batch["y"]) ** 2


def exact_mean(values: Any, weights: Any = None) -> float:
    """The mean of float or integer values, exactly, then rounded once."""
    values = [Fraction(v) for v in np.asarray(values).reshape(-1).tolist()]
    if weights is None:
        return float(sum(values) / len(values))
    weights = [Fraction(w) for w in np.asarray(weights).reshape(-1).tolist()]
    return float(sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights))


def close(got: float, want: float, relative: float = 1e-6) -> bool:
    return math.isclose(got, want, rel_tol=relative)


@flax.struct.dataclass
class Average:
    """A metric with the protocol of CLU and metrax, and nothing from them."""

    total: Any
    count: Any

    @classmethod
    def from_values(cls, values: jax.Array, mask: jax.Array) -> Average:
        kept = jnp.where(mask, values, 0)
        return cls(jnp.sum(kept), jnp.sum(mask, dtype=jnp.int32))

    def merge(self, other: Average) -> Average:
        return Average(self.total + other.total, self.count + other.count)

    def compute(self) -> Any:
        return self.total / self.count


@dataclasses.dataclass
class Lazy:
    """An array-like that makes its rows when they are read, and remembers which were."""

    length: int
    reads: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    dtype: Any = dataclasses.field(default_factory=lambda: np.dtype(np.float32))

    @property
    def shape(self) -> tuple[int]:
        return (self.length,)

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(self.length)
        self.reads.append((start, stop))
        return np.arange(start, stop, dtype=self.dtype)
