"""The plan of a run: its metrics, and how a step's numbers are transferred to the host.

All numbers of a step are transferred as one short row of bytes: one small copy from the device for
any number of metrics, and exactly what the journal stores. `RecordLayout` packs on the device and
unpacks on the host.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .measure import is_exact, is_integer, measure
from .metrics import Max, Mean, Min, Reduction, Sum, check_shapes, is_metric_object, named
from .totals import ExtremeTotal, ObjectTotal, SumTotal, Total

_CODES = {
    "bool": "?",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
}


class RecordLayout:
    """How a tree of small arrays is laid out in a row of bytes, little-endian as on every device.

    Args:
        shapes: The tree, as shapes and dtypes.
    """

    def __init__(self, shapes: Any) -> None:
        leaves, self._structure = jax.tree.flatten(shapes)
        self._leaves = leaves
        self._struct = struct.Struct("<" + "".join(map(_code, leaves)))
        self.size = self._struct.size

    def pack(self, tree: Any) -> jax.Array:
        """Return the tree as a `uint8` vector, on the device."""
        return jnp.concatenate([_bytes(leaf) for leaf in jax.tree.leaves(tree)])

    def unpack(self, row: bytes) -> Any:
        """Return the tree from a row of bytes, on the host: scalars as Python numbers."""
        fields = self._struct.unpack(row)
        leaves = [
            np.frombuffer(field, leaf.dtype).reshape(leaf.shape)
            if isinstance(field, bytes)
            else field
            for field, leaf in zip(fields, self._leaves, strict=True)
        ]
        return jax.tree.unflatten(self._structure, leaves)


def _code(leaf: Any) -> str:
    code = _CODES.get(str(leaf.dtype)) if not leaf.shape else None
    return code or f"{math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize}s"


def _bytes(leaf: jax.Array) -> jax.Array:
    leaf = jnp.asarray(leaf)
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint8).reshape(-1)
    return lax.bitcast_convert_type(leaf, jnp.uint8).reshape(-1)


@dataclass(frozen=True)
class MetricsPlan:
    """The metrics of a run.

    Attributes:
        metrics: Every metric by name, as shapes.
        layout: The layout of a step's numbers as bytes.
    """

    metrics: dict[str, Any]
    layout: RecordLayout

    def step(self, output: Any, valid: jax.Array) -> jax.Array:
        """Reduce the result of `fn` to the row of bytes of this step, on the device."""
        return self.layout.pack(_measured(named(output), valid))

    def totals(self, shared: bool = False) -> dict[str, Total]:
        """Return a fresh total for every metric.

        Args:
            shared: Whether another process will add them to its own.
        """
        alone = len(self.metrics) == 1
        return {name: _total(m, alone, shared) for name, m in self.metrics.items()}

    @property
    def objects(self) -> list[str]:
        """The names of the metrics that are objects of another library."""
        return [name for name, m in self.metrics.items() if is_metric_object(m)]

    def describe(self) -> str:
        """Return every metric with its kind and dtypes, for the journal."""
        return ", ".join(f"{name}: {_describe(m)}" for name, m in sorted(self.metrics.items()))


def make_plan(output: Any, batch: int) -> MetricsPlan:
    """Return the plan for the result of `fn`, given as shapes for a batch of this size."""
    metrics = named(output)
    check_shapes(metrics, batch)
    valid = jax.ShapeDtypeStruct((batch,), jnp.bool_)
    return MetricsPlan(metrics, RecordLayout(jax.eval_shape(_measured, metrics, valid)))


def _measured(metrics: dict[str, Any], valid: jax.Array) -> dict[str, Any]:
    """Return the record of every metric."""
    # Compiled as one program with `fn`; `jit` only saves tracing metrics of one kind again.
    traced_once = jax.jit(measure, inline=True)
    return {name: traced_once(metric, valid) for name, metric in metrics.items()}


def _total(metric: Any, alone: bool, shared: bool) -> Total:
    if isinstance(metric, Min | Max):
        return ExtremeTotal(isinstance(metric, Min))
    if isinstance(metric, Mean | Sum):
        values, weights = metric.values, metric.weights
        kind = None if weights is None else "integer" if is_integer(weights.dtype) else "float"
        return SumTotal(
            mean=isinstance(metric, Mean),
            integer=is_exact(metric),
            weights=kind,
            per_row=math.prod(values.shape[1:]),
        )
    return ObjectTotal(jax.tree.structure(metric), alone, shared)


def _describe(metric: Any) -> str:
    kind = type(metric).__name__
    if not isinstance(metric, Reduction):
        return f"{kind}({', '.join(str(leaf.dtype) for leaf in jax.tree.leaves(metric))})"
    weights = "" if metric.weights is None else f", weights {metric.weights.dtype}"
    return f"{kind}({metric.values.dtype}{list(metric.values.shape[1:])}{weights})"
