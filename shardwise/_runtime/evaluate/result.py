"""The result of `evaluate`: data, with text, dictionary and HTML derived from it."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..._base.calls import public_methods
from ..._base.errors import ArgumentError, UnknownNameError, did_you_mean
from ..._base.plain import Plain
from .reduce.totals import NonFinite


@public_methods("evaluation")
@dataclass(frozen=True, eq=False)
class Evaluation(Plain, Mapping[str, Any]):
    """The result of an evaluation: a mapping from metric name to value, with counts and times.

    With a single metric, `float(evaluation)` is its value.

    Attributes:
        metrics: The value of every metric: a float, an int for sums and extremes of integers, or an
            array where a metric object computes one.
        count: The number of examples.
        weight: For every mean and sum, the total weight: the number of values where no weights were
            given.
        nonfinite: For every metric with NaN or infinite values, the number of such examples and the
            index of the first.
        seconds: The time of this run, including compilation.
        examples_per_second: Examples computed in this run per second.
        batch: Examples per step. The bits of the result depend on it.
        devices: The number of devices, of all processes.
        processes: The number of processes.
        resumed: Examples whose results came from the journal.
        notes: Further remarks, as sentences.
    """

    metrics: dict[str, Any]
    count: int
    weight: dict[str, int | float]
    nonfinite: dict[str, NonFinite]
    seconds: float
    examples_per_second: float
    batch: int
    devices: int
    processes: int = 1
    resumed: int = 0
    notes: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> Any:
        try:
            return self.metrics[name]
        except (KeyError, TypeError):
            names = ", ".join(map(repr, self.metrics))
            raise UnknownNameError(
                f"no metric {name!r}",
                where="an Evaluation",
                rule=f"There are {names}.",
                remedy=did_you_mean(str(name), self.metrics)
                or f"result[{next(iter(self.metrics), '')!r}]; names are given by what fn "
                'returns: {"loss": losses}.',
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def __float__(self) -> float:
        if len(self.metrics) != 1:
            raise ArgumentError(f"there are {len(self.metrics)} metrics; select one by its name")
        return float(next(iter(self.metrics.values())))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain Python values, ready for JSON."""
        metrics = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in self.metrics.items()
        }
        return super().to_dict() | {"metrics": metrics}

    def __str__(self) -> str:
        width = max(map(len, self.metrics), default=0)
        lines = [f"{name:<{width}}  {_text(value)}" for name, value in self.metrics.items()]
        return "\n".join([*lines, self._summary(), *self._remarks()])

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name}={_text(value)}" for name, value in self.metrics.items())
        return f"Evaluation({metrics}, count={self.count})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td>{html.escape(_text(value))}</td></tr>"
            for name, value in self.metrics.items()
        )
        remarks = "".join(f"<br>{html.escape(line)}" for line in self._remarks())
        return f"<table>{rows}</table><small>{html.escape(self._summary())}{remarks}</small>"

    def _summary(self) -> str:
        devices = f"{self.devices} device{'s' * (self.devices != 1)}"
        if self.processes > 1:
            devices += f" of {self.processes} processes"
        resumed = f", {self.resumed} of them from the journal" if self.resumed else ""
        # No speed if all examples are from the journal.
        speed = f"{self.examples_per_second:.3g} examples/s, " * (self.resumed != self.count)
        return (
            f"{self.count} examples{resumed}, {self.seconds:.3g} s, "
            f"{speed}batch {self.batch} on {devices}"
        )

    def _remarks(self) -> list[str]:
        lines = [
            f"{name}: {entry.count} examples are not finite, the first is number {entry.first}"
            if entry.count != 1
            else f"{name}: 1 example is not finite, number {entry.first}"
            for name, entry in self.nonfinite.items()
        ]
        return [*lines, *self.notes]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"array of {value.dtype}{list(value.shape)}"
    return str(value)
