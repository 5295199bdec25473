"""Plot the metrics of a training, readable for any number of steps.

A metric of every step is drawn as a running mean, with the values faintly behind it: up to a
thousand as a line, more as a band from the least to the greatest value of each interval. Up to
fifty values, such as those of evaluations, are dots joined by lines. Values that span decades get a
logarithmic scale.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .log import Row

_UNDRAWN = {"step", "seconds", "weight", "updated"}
FEW = 50
"""Up to this many values are drawn as dots."""
STRETCHES = 1000
"""The number of intervals of the band, about the width of the plot in pixels."""
WINDOW = 50
"""The running mean is over a fiftieth of the values."""
DECADES = 1.5
"""The number of decades from which the scale is logarithmic."""


def draw_curves(rows: list[Row], path: Path) -> None:
    """Plot every metric against the step; print a line on standard error if that fails."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(
            f"fit: {path.name} was not drawn; pip install 'shardwise[plots]' brings matplotlib.",
            file=sys.stderr,
        )
        return
    panels = _panels(rows)
    if not panels:
        return
    figure = Figure(figsize=(6.4, 2.6 * len(panels)), layout="constrained")
    for index, (title, names) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(len(panels), 1, index)
        _draw_panel(axes, title, {name: _series(rows, name) for name in names})
        if index == len(panels):
            axes.set_xlabel("step")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        print(f"fit: {path} was not drawn: {error.strerror or error}", file=sys.stderr)


def _panels(rows: list[Row]) -> dict[str, list[str]]:
    """Return metrics by the last part of their name: `loss` and `test/loss` share a panel."""
    panels: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        if name not in _UNDRAWN:
            panels.setdefault(name.rpartition("/")[2], []).append(name)
    return dict(sorted(panels.items(), key=lambda panel: panel[0] != "loss"))


def _series(rows: list[Row], name: str) -> tuple[np.ndarray, np.ndarray]:
    points = [(row["step"], row[name]) for row in rows if name in row]
    steps, values = zip(*points, strict=True)
    return np.asarray(steps), np.asarray(values, np.float64)


def _draw_panel(axes: Any, title: str, series: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    noisy = any(len(steps) > FEW for steps, _ in series.values())
    for k, (name, (steps, values)) in enumerate(series.items()):
        color = f"C{k}"
        if len(steps) <= FEW:
            axes.plot(steps, values, color=color, label=name, marker="o", markersize=3, zorder=3)
            continue
        if len(steps) <= STRETCHES:  # with fewer values a band would have no height
            axes.plot(steps, values, color=color, alpha=0.25, linewidth=1, zorder=1)
        else:
            middle, low, high = stretches(steps, values)
            axes.fill_between(middle, low, high, color=color, alpha=0.25, linewidth=0)
        mean = running_mean(values, max(2, len(values) // WINDOW))
        thin = _spread(len(steps))
        axes.plot(steps[thin], mean[thin], color=color, label=f"{name}, running mean", zorder=2)
    if is_wide([values for _, values in series.values()]):
        axes.set_yscale("log")
    axes.set_ylabel(title)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if noisy or len(series) > 1 or title not in series:
        axes.legend(frameon=False)


def _spread(count: int) -> np.ndarray:
    """Return evenly spread indices, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, STRETCHES).astype(int))


def stretches(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return middle, least and greatest value of each interval; skip those that are not finite."""
    parts = np.array_split(np.arange(len(steps)), min(STRETCHES, len(steps)))
    intervals = [(steps[part].mean(), values[part][np.isfinite(values[part])]) for part in parts]
    ranges = [(middle, finite.min(), finite.max()) for middle, finite in intervals if finite.size]
    middle, low, high = (
        (np.array(column) for column in zip(*ranges, strict=True)) if ranges else [[]] * 3
    )
    return np.asarray(middle), np.asarray(low), np.asarray(high)


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of the `window` values around each, without those that are not finite."""
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    places = np.arange(len(values))
    first = np.maximum(places - window // 2, 0)
    last = np.minimum(places + window // 2 + 1, len(values))
    count = counts[last] - counts[first]
    return np.where(count > 0, (sums[last] - sums[first]) / np.maximum(count, 1), math.nan)


def is_wide(columns: Sequence[np.ndarray]) -> bool:
    """Return whether values are positive and span decades, so that a logarithmic scale is due."""
    values = np.concatenate(columns)
    values = values[np.isfinite(values)]
    if not values.size or values.min() <= 0:
        return False
    low, high = np.quantile(values, [0.01, 0.99])
    return bool(high / low >= 10**DECADES)
