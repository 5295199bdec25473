"""Compare two reports: what changes in traffic, memory, work and time."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from typing import Any

from ..._base.plain import Plain
from . import units
from .facts import ReportData


@dataclasses.dataclass(frozen=True)
class FigureChange(Plain):
    """One figure in both reports."""

    what: str
    unit: str
    """`bytes`, `FLOP`, `seconds`, or empty for a count."""
    before: float
    after: float

    @property
    def ratio(self) -> float | None:
        """`after / before`; None if `before` is zero."""
        return self.after / self.before if self.before else None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {**super().to_dict(), "ratio": self.ratio}


@dataclasses.dataclass(frozen=True)
class Comparison(Plain):
    """The changes from one report to another."""

    before: str
    after: str
    changes: tuple[FigureChange, ...]

    def __str__(self) -> str:
        return _text(self)

    def __repr__(self) -> str:
        return str(self)


def compare(before: ReportData, after: ReportData) -> Comparison:
    """Compare all figures of two reports, in the order of the report."""
    changes = tuple(_changes(before, after))
    return Comparison(_title(before), _title(after), changes)


def _title(report: ReportData) -> str:
    machine = f", {report.cost.hardware.name}" if report.cost else ""
    return f"{report.name} on {units.mesh(report.mesh)}{machine}"


def _changes(before: ReportData, after: ReportData) -> Iterator[FigureChange]:
    yield FigureChange("devices", "", before.devices, after.devices)
    yield FigureChange("collectives", "", _times(before), _times(after))
    yield FigureChange("sent by one device", "bytes", before.bytes_sent, after.bytes_sent)
    by_axes = [{row.axes: row.bytes for row in report.traffic} for report in (before, after)]
    for axes in dict.fromkeys([*by_axes[0], *by_axes[1]]):
        name = f"  over {units.axes(axes)}"
        yield FigureChange(name, "bytes", by_axes[0].get(axes, 0), by_axes[1].get(axes, 0))
    old, new = before.memory, after.memory
    yield FigureChange("arguments", "bytes", old.arguments, new.arguments)
    yield FigureChange("results", "bytes", old.results, new.results)
    yield FigureChange("peak of live values", "bytes", old.peak, new.peak)
    yield FigureChange("work of one device", "FLOP", before.work.flops, after.work.flops)
    yield FigureChange("memory read and written", "bytes", before.work.moved, after.work.moved)
    yield FigureChange("work in all", "FLOP", before.work.total, after.work.total)
    yield FigureChange(
        "repeated on other devices", "FLOP", before.work.redundant, after.work.redundant
    )
    if before.cost is not None and after.cost is not None:
        for name in ("compute", "communication", "serial", "overlapped"):
            yield FigureChange(
                name, "seconds", getattr(before.cost, name), getattr(after.cost, name)
            )


def _times(report: ReportData) -> int:
    return sum(row.count for row in report.traffic)


def _text(comparison: Comparison) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "before", "after", "ratio"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for change in comparison.changes:
        ratio = "" if change.ratio is None else f"× {change.ratio:.3g}"
        table.add_row(
            change.what, _shown(change, change.before), _shown(change, change.after), ratio
        )
    buffer = io.StringIO()
    console = Console(file=buffer, width=110, no_color=True, highlight=False, force_terminal=False)
    console.print(f"before: {comparison.before}\nafter:  {comparison.after}\n", markup=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def _shown(change: FigureChange, value: float) -> str:
    match change.unit:
        case "bytes":
            return units.size(value)
        case "seconds":
            return units.duration(value)
        case "FLOP":
            return units.large(value, "FLOP")
    return f"{value:,}"
