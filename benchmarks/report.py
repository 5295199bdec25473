"""Tables, as Markdown that also reads well in a terminal."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Target:
    """A ratio to reach: `value` is to be at most `limit`, or at least."""

    what: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def reached(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def row(self) -> list[str]:
        sign = ">=" if self.at_least else "<="
        verdict = "reached" if self.reached else "not reached"
        return [self.what, ratio(self.value), f"{sign} {ratio(self.limit)}", verdict]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(row, widths) for row in [header, rule, *rows])


def targets(found: Sequence[Target]) -> str:
    return table(["ratio", "measured", "target", "verdict"], [target.row() for target in found])


KEPT = "SHARDWISE_BENCH"
"""Where `all.py` wants the verdicts of a script; it prints those of all together."""


def conclude(found: Sequence[Target]) -> None:
    """Print the ratios of a script with their targets and verdicts; every script ends with it."""
    print(targets(found), flush=True)
    if path := os.environ.get(KEPT):
        with open(path, "a") as file:
            file.writelines(json.dumps(asdict(target)) + "\n" for target in found)


def ratio(value: float) -> str:
    """`0.93 x` near one, `1/37` where the point is how much smaller."""
    return f"1/{1 / value:.1f}" if 0 < value < 0.2 else f"{value:.2f} x"


def megabytes(size: float | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.0f} MB"


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:,.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:,.0f} ms"


def machine(device: str, jax_version: str) -> str:
    """Where and when the figures were taken, in one line."""
    today = datetime.date.today().isoformat()
    python = ".".join(str(part) for part in sys.version_info[:3])
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = f"{usable} {platform.machine()} cores"
    return ", ".join(filter(None, [today, f"Python {python}", f"JAX {jax_version}", cores, device]))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = [
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join([first, *rest]) + " |"
