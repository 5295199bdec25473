"""A report for the terminal: who holds what, the collectives, traffic, memory, cost."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from . import units
from .data import CollectiveUse, Cost, Facts, Held, Traffic

WIDTH = 110
"""Of the text that is not written to a terminal."""

ROWS, COLUMNS = 4, 8
"""How much of a mesh is drawn."""

WAYS = 3
"""How many ways of holding the arrays of one line are listed."""

ARRAYS = 16
"""How many arguments and results are listed before the rest is summed up."""

BAR = 18
"""How long a bar is that stands for everything: with the figures it fits 80 columns."""

COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red")
"""One for each mesh axis, in order."""


def plain_text(report: Facts) -> str:
    """The report as text without colour."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, no_color=True, highlight=False, force_terminal=False)
    console.print(Group(*_parts(report)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).rstrip()


def show(report: Facts) -> None:
    """Print the report: in colour and as wide as it is on a terminal, plain elsewhere."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(Group(*_parts(report)))
    else:
        print(plain_text(report))


def _parts(report: Facts) -> Iterator[RenderableType]:
    sizes = units.mesh([(axis.name, axis.size) for axis in report.mesh])
    devices = f"{report.devices:,} device{'s' * (report.devices != 1)}"
    yield Text.assemble((report.name, "bold"), f" on {sizes}, {devices}\n")
    yield from _drawing(report)
    yield from _holdings(report)
    yield from _collectives(report)
    yield from _bars(report)
    yield from _redundant(report)
    yield _memory(report)
    yield _work(report)
    if report.cost is not None:
        yield from _cost(report, report.cost)
    for note in report.notes:
        yield Text(f"Note: {note}")


def _head(words: str) -> Text:
    return Text(words, style="bold")


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def _color(report: Facts, names: Sequence[str]) -> str:
    order = [axis.name for axis in report.mesh]
    return COLORS[order.index(names[0]) % len(COLORS)] if names[0] in order else "white"


# --- the mesh


def _drawing(report: Facts) -> Iterator[RenderableType]:
    """The devices of the last two axes as a grid of their numbers, cut where it is large."""
    if report.devices == 1 or not report.mesh:
        return
    rows, columns = [("", 1), *((axis.name, axis.size) for axis in report.mesh)][-2:]
    down, across = _some(rows[1], ROWS), _some(columns[1], COLUMNS)
    grid = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    head = [f"{columns[0]} →", *("…" if c is None else str(c) for c in across)]
    grid.add_row(*(Text(cell, style="dim") for cell in head))
    for r in down:
        name = f"{rows[0]} {'…' if r is None else r}" if rows[0] else ""
        cells = ["…" if r is None or c is None else str(r * columns[1] + c) for c in across]
        grid.add_row(Text(name, style="dim"), *cells)
    more = len(report.mesh) > 2
    outer = [axis.name for axis in report.mesh[:-2]]
    where = f", at the first coordinate of {', '.join(outer)}" if more else ""
    yield _head(f"Devices{where}")
    yield grid
    yield Text("")


def _some(size: int, most: int) -> list[int | None]:
    if size <= most:
        return list(range(size))
    return [*range(most - 2), None, size - 1]


# --- who holds what


def _holdings(report: Facts) -> Iterator[RenderableType]:
    yield _head("Who holds what")
    table = _table("", "whole", "spec", "one device", "bytes", "the same along", right=["bytes"])
    for held in (report.arguments, report.results):
        for one in held[:ARRAYS]:
            table.add_row(*map(Text, _holding(one)))
        if len(held) > ARRAYS:
            rest = held[ARRAYS:]
            bytes_ = units.size(sum(one.bytes for one in rest))
            table.add_row(f"and {len(rest)} more", "", "", "", bytes_, "")
    yield table
    yield Text("")


def _holding(one: Held) -> list[str]:
    return [
        one.path + ("" if one.used else " (unused)"),
        units.array(one.shape, one.dtype),
        units.spec(one.spec),
        units.array(one.local_shape, one.dtype),
        units.size(one.bytes),
        ", ".join(one.replicated) or "-",
    ]


# --- collectives


@dataclasses.dataclass
class Row:
    """Collectives of one line of the program that differ only in their arrays."""

    first: CollectiveUse
    uses: list[CollectiveUse]

    @property
    def array(self) -> str:
        """The array that is sent, or how many there are."""
        types = {units.array(use.shape, use.dtype) for use in self.uses}
        times = f" × {len(self.uses)}" if len(self.uses) > 1 else ""
        return types.pop() + times if len(types) == 1 else f"{len(self.uses)} arrays"

    @property
    def holds(self) -> list[str]:
        """Who holds what before and after, each way once."""
        told = (one.meaning for one in self.uses)
        return list(dict.fromkeys(f"{one.before} → {one.after}" for one in told if one))


def rows_of(uses: Sequence[CollectiveUse]) -> list[Row]:
    """The collectives by the line they come from, in program order."""
    rows: dict[Any, Row] = {}
    for use in uses:
        where = use.where
        key = (use.name, use.axes, use.count, use.direction, use.counted, use.module)
        rows.setdefault((*key, use.group_size, where.file, where.line), Row(use, [])).uses.append(
            use
        )
    return list(rows.values())


def _collectives(report: Facts) -> Iterator[RenderableType]:
    if not report.collectives:
        yield _head("No collectives: the devices send each other nothing.")
        yield Text("")
        return
    yield _head("Collectives, top to bottom; bytes are sent by one device")
    rows = rows_of(report.collectives)
    cells = [COLLECTIVE, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    yield Text(_line(COLLECTIVE, widths), style="dim")
    for row, line in zip(rows, cells[1:], strict=True):
        text = Text(_line(line, widths), no_wrap=True, overflow="ellipsis")
        text.stylize(_color(report, row.first.axes), 0, widths[0])
        yield text
        yield Text(f"    {_source(row.first)}", style="dim", no_wrap=True, overflow="ellipsis")
        for holds in row.holds[:WAYS]:
            yield Text(f"    {holds}", style="dim italic", no_wrap=True, overflow="ellipsis")
    if any(not use.counted for use in report.collectives):
        yield Text("  In brackets: not in the totals.")
    yield Text("")


COLLECTIVE = ("", "over", "devices", "array", "times", "each", "in all", "pass")
"""The columns of the collectives; numbers stand to the right."""

NUMBERS = {"devices", "times", "each", "in all"}


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.rjust(width) if name in NUMBERS else cell.ljust(width)
        for name, cell, width in zip(COLLECTIVE, cells, widths, strict=True)
    )
    return "  ".join(padded)


def _cells(row: Row) -> tuple[str, ...]:
    use = row.first
    total = units.size(sum(one.total_bytes for one in row.uses))
    return (
        use.name if use.counted else f"({use.name})",
        units.axes(use.axes),
        str(use.group_size),
        row.array,
        "unknown" if use.count is None else str(use.count),
        units.size(sum(one.bytes_sent for one in row.uses)),
        total if use.counted else f"({total})",
        use.direction,
    )


def _source(use: CollectiveUse) -> str:
    """Where a collective stands: its line, the module, the text of the line."""
    module = f" in {use.module}" if use.module else ""
    return f"{use.where}{module}: {use.where.text}" if use.where.text else f"{use.where}{module}"


def _bars(report: Facts) -> Iterator[RenderableType]:
    if not report.bytes_sent:
        return
    sent = f"one device sends {'at least ' * report.unknown}{units.size(report.bytes_sent)}"
    if report.cost is not None:
        sent += f" in {units.duration(report.cost.communication)} by the model"
    yield _head(f"Traffic by axis: {sent}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for one in report.traffic:
        bar = Text("█" * _blocks(one), style=_color(report, one.axes))
        table.add_row(Text(units.axes(one.axes)), bar, *_amounts(one))
    for column in table.columns[2:]:
        column.justify = "right"
    yield table
    yield Text("")


def _amounts(one: Traffic) -> list[str]:
    """What the bar shows, the time where it is known, and the bytes."""
    if one.seconds is None:
        times = f"{one.count} collective{'s' * (one.count != 1)}"
        return [f"{units.share(one.share)} of the bytes", units.size(one.bytes), times]
    time = f"{units.share(one.part)} of the time", units.duration(one.seconds)
    return [*time, f"{units.share(one.share)} of the bytes", units.size(one.bytes)]


def _blocks(one: Traffic) -> int:
    """The length of a bar: at least a block for what is there at all."""
    return max(round(BAR * one.part), int(one.bytes > 0))


# --- what is redundant


def _redundant(report: Facts) -> Iterator[RenderableType]:
    found = report.savings
    if not found:
        return
    saved = report.redundant_bytes
    if saved:
        share = units.share(saved / report.bytes_sent)
        words = (
            f"Redundant traffic: {units.size(saved)} of {units.size(report.bytes_sent)}, {share}"
        )
        if report.cost is not None:
            words += f"; {units.duration(report.cost.redundant)} on {report.cost.hardware.name}"
        yield _head(words)
    else:
        yield _head("Traffic that memory could spare")
    for one in found:
        kept = f", for {units.size(one.memory)} of memory" if one.memory else ""
        yield Text(f"  {units.size(one.bytes)} at {one.where}{kept}: {one.reason}")
        yield Text(f"    {one.remedy}", style="dim")
    yield Text("  These edits keep the result as it is, right or wrong: sw.check says which.")
    yield Text("")


# --- memory, work, cost


def _memory(report: Facts) -> Text:
    memory = report.memory
    text = Text.assemble(("Memory of one device", "bold"), "\n")
    text.append(
        f"  arguments {units.size(memory.arguments)}, results {units.size(memory.results)}, "
    )
    place = f" at {memory.peak_where}" if memory.peak_where.file else ""
    text.append(f"peak of live values {units.size(memory.peak)}{place}\n")
    largest = [
        f"{one.what} {units.array(one.shape, one.dtype)} {units.size(one.bytes)}"
        for one in memory.live[:3]
    ]
    return text.append(f"  largest at the peak: {', '.join(largest)}\n" if largest else "")


def _work(report: Facts) -> Text:
    work = report.work
    text = Text.assemble(("Work", "bold"), "\n")
    text.append(f"  {units.large(work.flops, 'FLOP')} on each device, ")
    text.append(f"{units.large(work.total, 'FLOP')} in all")
    share = units.share(work.redundant / work.total) if work.total else "0 %"
    text.append(f", {share} of it repeated on other devices\n")
    if work.uncounted:
        text.append(f"  not counted: {', '.join(work.uncounted)}\n")
    return text


def _cost(report: Facts, cost: Cost) -> Iterator[RenderableType]:
    text = Text.assemble(("Cost", "bold"), f" on {cost.hardware.name}, by a model\n")
    text.append(f"  compute {units.duration(cost.compute)}, communication ")
    text.append(
        f"{units.duration(cost.communication)} ({units.duration(cost.latency)} of it latency); "
    )
    text.append(f"{units.duration(cost.overlapped)} to {units.duration(cost.serial)} a step\n")
    text.append(f"  {BOUNDS[cost.bound]}\n")
    if not cost.fits:
        memory = units.size(cost.hardware.memory)
        text.append(f"  The peak does not fit a device: it has {memory}.\n", style="red")
    yield text
    yield _head("Efficiency as an axis grows and each device keeps its work")
    sizes = [str(point.size) for point in cost.scaling[0].points] if cost.scaling else []
    table = _table("axis", *sizes, right=sizes)
    for curve in cost.scaling:
        shown = [_band(p.efficiency, p.efficiency_overlapped) for p in curve.points]
        table.add_row(Text(curve.axis, style=_color(report, (curve.axis,))), *shown)
    yield table
    yield Text("  in percent, without and with overlap\n")


def _band(low: float, high: float) -> str:
    low, high = sorted((round(100 * low), round(100 * high)))
    return f"{low}" if low == high else f"{low}-{high}"


BOUNDS = {
    "arithmetic": "Arithmetic takes longest.",
    "memory": "Reading and writing the devices' own memory takes longest.",
    "bandwidth": "Sending takes longest: fewer bytes would help.",
    "latency": "Waiting for messages takes longest: fewer and larger collectives would help.",
}
"""What to say of what dominates."""
