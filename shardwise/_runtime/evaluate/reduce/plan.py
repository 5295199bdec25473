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

    def totals(self) -> dict[str, Total]:
        """Return a fresh total for every metric."""
        return {name: _total(m, len(self.metrics) == 1) for name, m in self.metrics.items()}

    @property
    def objects(self) -> list[str]:
        """The names of the metrics that are objects of another library."""
        return [name for name, m in self.metrics.items() if is_metric_object(m)]

    def describe(self) -> str:
        """Return every metric with its kind and dtypes, for the journal."""
        return ", ".join(f"{name}: {_describe(m)}" for name, m in sorted(self.metrics.items()))


_MANY = 8
"""From this many metrics of one kind and shape on, they are computed as one array."""


def _measured(metrics: dict[str, Any], valid: jax.Array) -> dict[str, Any]:
    """Return the record of every metric."""
    by_kind: dict[Any, list[str]] = {}
    for name, metric in metrics.items():
        by_kind.setdefault(_kind(name, metric), []).append(name)
    result: dict[str, Any] = {}
    for names in by_kind.values():
        if len(names) < _MANY:
            result |= {name: measure(metrics[name], valid) for name in names}
            continue
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *(metrics[name] for name in names))
        records = jax.vmap(measure, (0, None))(stacked, valid)
        for k, name in enumerate(names):
            result[name] = jax.tree.map(lambda x, k=k: x[k], records)
    return result


def _kind(name: str, metric: Any) -> Any:
    """Return a key that is equal for metrics that can be computed as one array."""
    if not isinstance(metric, Reduction):
        return name
    leaves = jax.tree.leaves(metric)
    return type(metric), *((leaf.shape, leaf.dtype) for leaf in leaves)


def make_plan(output: Any, batch: int) -> MetricsPlan:
    """Return the plan for the result of `fn`, given as shapes for a batch of this size."""
    metrics = named(output)
    check_shapes(metrics, batch)
    valid = jax.ShapeDtypeStruct((batch,), jnp.bool_)
    kinds = {_kind(name, m): m for name, m in metrics.items()}
    records = {kind: jax.eval_shape(measure, m, valid) for kind, m in kinds.items()}
    return MetricsPlan(
        metrics, RecordLayout({name: records[_kind(name, m)] for name, m in metrics.items()})
    )


def _total(metric: Any, alone: bool) -> Total:
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
    return ObjectTotal(jax.tree.structure(metric), alone)


def _describe(metric: Any) -> str:
    kind = type(metric).__name__
    if not isinstance(metric, Reduction):
        return f"{kind}({', '.join(str(leaf.dtype) for leaf in jax.tree.leaves(metric))})"
    weights = "" if metric.weights is None else f", weights {metric.weights.dtype}"
    return f"{kind}({metric.values.dtype}{list(metric.values.shape[1:])}{weights})"
