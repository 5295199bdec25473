"""The log of a training, JSONL or CSV, and its curves as a picture."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from typing import Any

from .._errors import ShardingError, explain_error

Row = dict[str, Any]


class Log:
    """Rows of `step`, `seconds` and metrics, in a file and in memory.

    A training that resumes goes on in the same file, from the row of its checkpoint on.
    """

    def __init__(self, path: str | os.PathLike[str], resume_at: int) -> None:
        self.path = Path(path)
        if self.path.suffix not in (".jsonl", ".csv"):
            raise ShardingError(
                explain_error(
                    f"{self.path.name!r} ends in {self.path.suffix!r}",
                    where="argument 'log'",
                    rule="A log is a .jsonl or a .csv file.",
                    remedy=f"log={str(self.path.with_suffix('.jsonl'))!r}",
                )
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and not resume_at:
            # Not ours, or of a training that never got to its first checkpoint.
            self.path.replace(_unused(self.path.with_suffix(self.path.suffix + ".before")))
        old = self._read() if self.path.exists() else []
        self.rows: list[Row] = [row for row in old if row["step"] <= resume_at]
        self._columns: list[str] = []
        self._rewrite()

    def add(self, rows: list[Row]) -> None:
        """Write rows, whole, to the end of the file."""
        self.rows += rows
        new = [name for row in rows for name in row if name not in self._columns]
        if self.path.suffix == ".csv" and new:
            self._rewrite()
            return
        with self.path.open("a", encoding="utf-8", newline="") as file:
            self._write(file, rows)

    def _rewrite(self) -> None:
        """Write the file anew: what went before, or a column more."""
        self._columns = list(dict.fromkeys(name for row in self.rows for name in row))
        beside = self.path.with_suffix(self.path.suffix + ".tmp")
        with beside.open("w", encoding="utf-8", newline="") as file:
            if self.path.suffix == ".csv" and self._columns:
                csv.DictWriter(file, self._columns).writeheader()
            self._write(file, self.rows)
        beside.replace(self.path)

    def _write(self, file: Any, rows: list[Row]) -> None:
        if self.path.suffix == ".csv":
            csv.DictWriter(file, self._columns).writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def _read(self) -> list[Row]:
        with self.path.open(encoding="utf-8", newline="") as file:
            # A line that was cut off by a crash is later than any checkpoint.
            lines = [line for line in file if line.endswith("\n")]
        try:
            if self.path.suffix == ".csv":
                rows = [_numbers(row) for row in csv.DictReader(lines)]
            else:
                rows = [json.loads(line) for line in lines]
            if all("step" in row and "seconds" in row for row in rows):
                return rows
            raise ValueError("there are rows without step and seconds")
        except (ValueError, TypeError) as error:
            raise ShardingError(
                explain_error(
                    f"{self.path} cannot be read as the log of this training: {error}",
                    where="argument 'log'",
                    rule="A training that resumes goes on with its own log.",
                    remedy="move that file, or name another one.",
                )
            ) from error


def _unused(path: Path) -> Path:
    """The path, or with a number behind it if there is such a file already."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}{number}")
    return found


def _numbers(row: dict[str, str]) -> Row:
    return {
        name: int(value) if name == "step" else float(value) if value not in _WORDS else value
        for name, value in row.items()
        if value
    }


_WORDS = {"True", "False"}


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
