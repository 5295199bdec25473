"""The totals on the host: one per metric, updated step by step, read at any time.

Sums are exact (`exact.py`), so steps may come in any order. Metric objects of other libraries are
merged with their own `merge`, which rounds; they are therefore merged pairwise in the order of the
examples, independently of the order in which steps arrive. Both give the same bits for the same
steps.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ...._base.errors import ShardwiseError
from ...._base.plain import Plain
from ..spans import Span
from .exact import ExactSum
from .measure import MINUS, NAN, OF_WEIGHTS, PLUS


@dataclass(frozen=True)
class NonFinite(Plain):
    """Examples whose value, or weight, was NaN or infinite.

    Attributes:
        count: How many there are.
        first: The index of the first of them in the data.
    """

    count: int
    first: int


class Total:
    """The running total of one metric."""

    def add(self, record: Any, span: Span) -> None:
        """Add the record of a step."""
        raise NotImplementedError

    def values(self, name: str) -> dict[str, Any]:
        """Return the values of the metric of this name, by name."""
        raise NotImplementedError

    def export(self) -> Any:
        """Return what another process needs to add this total to its own, as JSON."""
        raise NotImplementedError

    def absorb(self, exported: Any, offset: int) -> None:
        """Add the total of another process, whose first example has the index `offset`."""
        raise NotImplementedError

    def weight(self) -> int | float | None:
        """Return the total weight, if there is one."""
        return None

    def non_finite(self) -> NonFinite | None:
        """Return the examples that are not finite, if there are any."""
        return None

    def is_weightless(self) -> bool:
        """Return whether it is known that nothing counted, so that there is no value."""
        return False


class _FiniteCheck(Total):
    """Counts values and weights that are not finite."""

    def __init__(self) -> None:
        self._bad = 0
        self._first: int | None = None
        self._kinds = 0

    def watch(self, record: Any, span: Span) -> None:
        if not record.get("bad"):
            return
        self._bad += record["bad"]
        index = span.start + record["first"]
        self._first = index if self._first is None else min(index, self._first)
        self._kinds |= record["kinds"]

    def non_finite(self) -> NonFinite | None:
        return None if self._first is None else NonFinite(self._bad, self._first)

    def counts(self) -> list[int | None]:
        return [self._bad, self._first, self._kinds]

    def add_counts(self, counts: list[Any], offset: int) -> None:
        bad, first, kinds = counts
        if bad:
            record = {"bad": bad, "first": first, "kinds": kinds}
            self.watch(record, Span(offset, 0))

    def non_finite_sum(self) -> float | None:
        """Return a sum with these values, by IEEE arithmetic; None if all are finite."""
        return _non_finite_sum(self._kinds & (NAN | PLUS | MINUS))

    def non_finite_weight(self) -> float | None:
        """Return the same for the sum of the weights."""
        return _non_finite_sum(self._kinds >> OF_WEIGHTS)


def _non_finite_sum(kinds: int) -> float | None:
    if not kinds:
        return None
    if kinds & NAN or kinds == PLUS | MINUS:
        return math.nan
    return math.inf if kinds == PLUS else -math.inf


class SumTotal(_FiniteCheck):
    """The total of a `Mean` or a `Sum`."""

    def __init__(self, mean: bool, integer: bool, weights: str | None, per_row: int) -> None:
        super().__init__()
        self._mean, self._integer, self._weights, self._per_row = mean, integer, weights, per_row
        self._sum, self._weight = ExactSum(), ExactSum()

    def add(self, record: Any, span: Span) -> None:
        _add_sum(self._sum, record["sum"], self._integer, span)
        if self._weights is None:
            self._weight.add(span.rows * self._per_row)
        else:
            _add_sum(self._weight, record["weight"], self._weights == "integer", span)
        self.watch(record, span)

    def values(self, name: str) -> dict[str, Any]:
        nonfinite = self.non_finite_sum()
        if nonfinite is not None:
            return {name: self._non_finite_mean(nonfinite) if self._mean else nonfinite}
        if self._mean:
            return {name: self._sum.over(self._weight)}
        return {name: int(self._sum) if self._integer else float(self._sum)}

    def _non_finite_mean(self, total: float) -> float:
        """Return a total that is not finite over the weight."""
        weight = self.non_finite_weight()
        if weight is not None:
            return total / weight
        return -total if self._weight.units < 0 else total

    def weight(self) -> int | float | None:
        nonfinite = self.non_finite_weight()
        if nonfinite is not None:
            return nonfinite
        return float(self._weight) if self._weights == "float" else int(self._weight)

    def export(self) -> Any:
        return {
            "sum": hex(self._sum.units),
            "weight": hex(self._weight.units),
            "bad": self.counts(),
        }

    def absorb(self, exported: Any, offset: int) -> None:
        self._sum.units += int(exported["sum"], 16)
        self._weight.units += int(exported["weight"], 16)
        self.add_counts(exported["bad"], offset)

    def is_weightless(self) -> bool:
        return self._mean and not self._weight.units


class ExtremeTotal(_FiniteCheck):
    """The total of a `Min` or a `Max`."""

    def __init__(self, least: bool) -> None:
        super().__init__()
        self._pick = min if least else max
        self._value: Any = None

    def add(self, record: Any, span: Span) -> None:
        if record["some"]:
            self._include(record["extreme"])
        self.watch(record, span)

    def _include(self, value: Any) -> None:
        self._value = value if self._value is None else self._pick(self._value, value)

    def values(self, name: str) -> dict[str, Any]:
        invalid = self._value is None or self._kinds & NAN
        return {name: math.nan if invalid else self._value}

    def export(self) -> Any:
        return {"value": self._value, "bad": self.counts()}

    def absorb(self, exported: Any, offset: int) -> None:
        if exported["value"] is not None:
            self._include(exported["value"])
        self.add_counts(exported["bad"], offset)

    def is_weightless(self) -> bool:
        return self._value is None


class ObjectTotal(Total):
    """The total of a metric object: its own `merge`, pairwise, in the order of the examples.

    Leaves are converted to 64 bits first, under `enable_x64`: a float32 total loses digits and an
    int32 count wraps. Since `merge` rounds and needs the order of the steps, another process gets
    them one by one.

    Args:
        structure: The tree structure of the object.
        alone: Whether it is the only metric.
        shared: Whether another process will need the steps.
    """

    def __init__(self, structure: Any, alone: bool, shared: bool) -> None:
        self._structure, self._alone = structure, alone
        self._steps: list[Any] | None = [] if shared else None
        self._waiting: dict[int, tuple[int, Any]] = {}
        self._next = 0
        self._levels: list[Any] = []

    def add(self, record: Any, span: Span) -> None:
        leaves = [_widened(np.asarray(leaf)) for leaf in record]
        if self._steps is not None:
            self._steps.append([span.start, span.rows, [_encoded(leaf) for leaf in leaves]])
        self._waiting[span.start] = (span.stop, jax.tree.unflatten(self._structure, leaves))
        while self._next in self._waiting:
            self._next, metric = self._waiting.pop(self._next)
            with jax.enable_x64(True):
                self._push(metric)

    def _push(self, metric: Any) -> None:
        # A binary counter: level k holds the merge of 2**k neighbouring steps, or nothing.
        for level, earlier in enumerate(self._levels):
            if earlier is None:
                self._levels[level] = metric
                return
            metric, self._levels[level] = earlier.merge(metric), None
        self._levels.append(metric)

    def values(self, name: str) -> dict[str, Any]:
        levels = [metric for metric in self._levels if metric is not None]
        if not levels:
            return {}
        total = levels[0]
        with jax.enable_x64(True):
            for metric in levels[1:]:
                total = metric.merge(total)
            return _computed(name, total.compute(), self._alone)

    def export(self) -> Any:
        return self._steps

    def absorb(self, exported: Any, offset: int) -> None:
        for start, rows, leaves in exported:
            self.add([_decoded(*leaf) for leaf in leaves], Span(start + offset, rows))


def _encoded(array: np.ndarray) -> tuple[str, list[int], str]:
    return str(array.dtype), list(array.shape), base64.b64encode(array.tobytes()).decode()


def _decoded(dtype: str, shape: list[int], text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype).reshape(shape)


def _add_sum(total: ExactSum, partial: Any, integer: bool, span: Span) -> None:
    if integer:
        for shift, pairs in partial.items():
            total.add(sum(_integer(*pair) for pair in pairs) << shift)
        return
    high, low = partial
    if not (math.isfinite(high) and math.isfinite(low)):
        raise ShardwiseError(
            "the values are finite, but their sum is not.",
            where=str(span),
            rule="The sum over one step must fit the range of its dtype.",
            remedy="scale the values down in fn, or use a smaller batch.",
        )
    total.add(high)
    total.add(low)


def _integer(high: int, low: int) -> int:
    """Return an int64 from its words."""
    word = (high << 32) | low
    return word - (1 << 64) if word >> 63 else word


def _widened(leaf: np.ndarray) -> np.ndarray:
    if leaf.dtype.kind in "iu":
        return leaf if leaf.dtype == np.uint64 else leaf.astype(np.int64)
    return leaf if leaf.dtype.kind in "bc" else leaf.astype(np.float64)


def _computed(name: str, value: Any, alone: bool) -> dict[str, Any]:
    """Flatten the result of `compute`: a number, an array or, for a collection, a mapping."""
    if isinstance(value, Mapping):
        results: dict[str, Any] = {}
        for key, inner in value.items():
            results |= _computed(str(key) if alone else f"{name}/{key}", inner, False)
        return results
    array = np.asarray(value)
    return {name: array.item() if array.ndim == 0 else array}
