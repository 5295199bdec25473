"""The curves of a training as a picture."""

from __future__ import annotations

import sys
from pathlib import Path

from .log import Row


def draw_curves(rows: list[Row], path: Path) -> None:
    """A picture of every metric against the step; a line on standard error where it cannot be."""
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
        for name in names:
            points = [(row["step"], row[name]) for row in rows if name in row]
            marker = "o" if len(points) < 50 else None
            axes.plot(*zip(*points, strict=True), label=name, marker=marker, markersize=3)
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if len(names) > 1 or names[0] != title:
            axes.legend(frameon=False)
        if index == len(panels):
            axes.set_xlabel("step")
    figure.savefig(path, dpi=150)


_UNDRAWN = {"step", "seconds", "weight", "updated"}


def _panels(rows: list[Row]) -> dict[str, list[str]]:
    """Metrics by the last part of their name: `loss` and `test/loss` share a panel."""
    panels: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        if name not in _UNDRAWN:
            panels.setdefault(name.rpartition("/")[2], []).append(name)
    return dict(sorted(panels.items(), key=lambda panel: panel[0] != "loss"))
