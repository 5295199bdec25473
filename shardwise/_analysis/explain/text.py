"""Print a report on the terminal: layouts, collectives, traffic, memory and cost."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from . import units
from .advice import advice
from .data import ArrayLayout, Cost, Traffic
from .facts import ReportData
from .rows import CollectiveRow, describe_most_expensive, rows_of

WIDTH = 110
"""The width of text that is not written to a terminal."""

ROWS, COLUMNS = 4, 8
"""The largest number of rows and columns of a mesh that are drawn."""

WAYS = 3
"""The number of different layouts listed for the arrays of one line."""

ARRAYS = 16
"""The number of arguments and results listed before the rest is summed."""

BAR = 18
"""The length of a full bar, so that a line fits 80 columns."""

COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red")
"""One colour for each mesh axis, in order."""


def plain_text(report: ReportData) -> str:
    """Return the report as text without colour."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, no_color=True, highlight=False, force_terminal=False)
    console.print(Group(*_parts(report)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).rstrip()


def show(report: ReportData) -> None:
    """Print the report: in colour and full width on a terminal, plain elsewhere."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(Group(*_parts(report)))
    else:
        print(plain_text(report))


def _parts(report: ReportData) -> Iterator[RenderableType]:
    devices = f"{report.devices:,} device{'s' * (report.devices != 1)}"
    yield Text.assemble((report.name, "bold"), f" on {units.mesh(report.mesh)}, {devices}\n")
    yield from _drawing(report)
    yield from _holdings(report)
    yield from _collectives(report)
    yield from _bars(report)
    yield from _redundant(report)
    yield from _suggestions(report)
    yield from _memory(report)
    yield from _work(report)
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


def _color(report: ReportData, names: Sequence[str]) -> str:
    order = [axis.name for axis in report.mesh]
    return COLORS[order.index(names[0]) % len(COLORS)] if names[0] in order else "white"


# --- the mesh


def _drawing(report: ReportData) -> Iterator[RenderableType]:
    """Yield the devices of the last two axes as a grid of numbers, truncated if it is large."""
    if report.devices == 1 or not report.mesh:
        return
    rows, columns = [("", 1), *((axis.name, axis.size) for axis in report.mesh)][-2:]
    down, across = units.some(rows[1], ROWS), units.some(columns[1], COLUMNS)
    grid = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    head = [f"{columns[0]} →", *("…" if c is None else str(c) for c in across)]
    grid.add_row(*(Text(cell, style="dim") for cell in head))
    for r in down:
        name = f"{rows[0]} {'…' if r is None else r}" if rows[0] else ""
        cells = ["…" if r is None or c is None else str(r * columns[1] + c) for c in across]
        grid.add_row(Text(name, style="dim"), *cells)
    more = len(report.mesh) > 2
    outer = [axis.name for axis in report.mesh[:-2]]
    suffix = f", at the first coordinate of {', '.join(outer)}" if more else ""
    yield _head(f"Devices{suffix}")
    yield grid
    yield Text("")


# --- layouts


def _holdings(report: ReportData) -> Iterator[RenderableType]:
    yield _head("Who holds what")
    table = _table("", "whole", "spec", "one device", "bytes", "the same along", right=["bytes"])
    for arrays in (report.arguments, report.results):
        for array in arrays[:ARRAYS]:
            table.add_row(*map(Text, _holding(array)))
        if len(arrays) > ARRAYS:
            others = arrays[ARRAYS:]
            bytes_ = units.size(sum(array.bytes for array in others))
            table.add_row(f"and {len(others)} more", "", "", "", bytes_, "")
    yield table
    yield Text("")


def _holding(layout: ArrayLayout) -> list[str]:
    return [
        layout.path + ("" if layout.used else " (unused)"),
        units.array(layout.shape, layout.dtype),
        units.spec(layout.spec),
        units.array(layout.local_shape, layout.dtype),
        units.size(layout.bytes),
        ", ".join(layout.replicated) or "-",
    ]


# --- collectives


def _collectives(report: ReportData) -> Iterator[RenderableType]:
    if not report.collectives:
        yield _head(_nothing_sent(report))
        yield Text("")
        return
    whose = "Collectives of the compiled program" if report.compiled else "Collectives"
    yield _head(f"{whose}, top to bottom; bytes are sent by one device")
    rows = rows_of(report)
    cells = [_cells(row) for row in rows]
    names = list(cells[0])
    widths = [max(len(name), *(len(line[name]) for line in cells)) for name in names]
    yield Text(_line(dict.fromkeys(names), widths), style="dim")
    for row, line in zip(rows, cells, strict=True):
        text = Text(_line(line, widths), no_wrap=True, overflow="ellipsis")
        text.stylize(_color(report, row.first.axes), 0, widths[0])
        yield text
        yield Text(f"    {_source(row)}", style="dim", no_wrap=True, overflow="ellipsis")
        for reason in row.reasons[:WAYS]:
            yield Text(f"    because {reason}", style="dim italic")
        for holds in row.holds[:WAYS]:
            yield Text(f"    {holds}", style="dim italic", no_wrap=True, overflow="ellipsis")
    if any(not use.counted for use in report.collectives):
        yield Text("  In brackets: not in the totals.")
    if summary := describe_most_expensive(report):
        yield Text(summary)
    yield Text("")


def _nothing_sent(report: ReportData) -> str:
    if any("it was not compiled" in note for note in report.notes):
        return "What the compiler sends is not known: the program was not compiled."
    return "No collectives: the devices send each other nothing."


NUMBERS = {"devices", "times", "each", "in all", "time"}
"""The right-aligned columns of the table of collectives."""


def _line(cells: Mapping[str, str | None], widths: Sequence[int]) -> str:
    """Format a line of the table; the header has names instead of cells."""
    texts = (name if cell is None else cell for name, cell in cells.items())
    padded = (
        cell.rjust(width) if name in NUMBERS else cell.ljust(width)
        for name, cell, width in zip(cells, texts, widths, strict=True)
    )
    return "  ".join(padded)


def _cells(row: CollectiveRow) -> dict[str, str]:
    """Return the cells of a table row by column; with a time if the hardware is known."""
    use = row.first
    total, timed = units.size(row.bytes), row.report.cost is not None
    cells = {
        "": use.name if use.counted else f"({use.name})",
        "over": units.axes(use.axes),
        "devices": str(use.group_size),
        "array": row.array,
        "times": "unknown" if use.count is None else str(use.count),
        "each": units.size(sum(use_in_row.bytes_sent for use_in_row in row.uses)),
        "in all": total if use.counted else f"({total})",
        "time": (units.duration(row.seconds) if use.counted else "-") if timed else "",
        "pass": use.direction,
        "by": use.by,
    }
    optional = {"time": timed, "by": row.report.compiled}
    return {name: cell for name, cell in cells.items() if optional.get(name, True)}


def _source(row: CollectiveRow) -> str:
    """Return the location of a collective: its line, module and source text."""
    line, argument = row.first.where, row.of
    if argument and not line.file:
        return f"the argument {argument}"
    module = f" in {row.module}" if row.module else ""
    of_argument = f" of {argument}" if argument else ""
    text = f": {line.text}" if line.text else ""
    return f"{line}{module}{of_argument}{text}"


def _bars(report: ReportData) -> Iterator[RenderableType]:
    if not report.bytes_sent:
        return
    heading = f"one device sends {'at least ' * report.unknown}{units.size(report.bytes_sent)}"
    if report.cost is not None:
        heading += f" in {units.duration(report.cost.communication)} by the model"
    yield _head(f"Traffic by axis: {heading}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for row in report.traffic:
        bar = Text("█" * _blocks(row), style=_color(report, row.axes))
        table.add_row(Text(units.axes(row.axes)), bar, *_amounts(row))
    for column in table.columns[2:]:
        column.justify = "right"
    yield table
    yield Text("")


def _amounts(traffic: Traffic) -> list[str]:
    """Return the share that the bar shows, the time if it is known, and the bytes."""
    if traffic.seconds is None:
        times = f"{traffic.count} collective{'s' * (traffic.count != 1)}"
        return [f"{units.share(traffic.share)} of the bytes", units.size(traffic.bytes), times]
    time = f"{units.share(traffic.part)} of the time", units.duration(traffic.seconds)
    return [*time, f"{units.share(traffic.share)} of the bytes", units.size(traffic.bytes)]


def _blocks(traffic: Traffic) -> int:
    """Return the length of a bar: at least one block if anything is sent."""
    return max(round(BAR * traffic.part), int(traffic.bytes > 0))


# --- redundant traffic


def _redundant(report: ReportData) -> Iterator[RenderableType]:
    savings = report.savings
    if not savings:
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
    for saving in savings:
        memory = f", for {units.size(saving.memory)} of memory" if saving.memory else ""
        yield Text(f"  {units.size(saving.bytes)} at {saving.where}{memory}: {saving.reason}")
        yield Text(f"    {saving.remedy}", style="dim")
    yield Text("  These edits keep the result as it is, right or wrong: sw.check says which.")
    yield Text("")


# --- memory, work, cost


def _suggestions(report: ReportData) -> Iterator[RenderableType]:
    if not report.suggestions:
        return
    yield _head("Constraints that send less; each was compiled")
    for suggestion in report.suggestions:
        yield Text(f"  {suggestion.code}")
        yield Text(
            f"    one device sends {units.size(suggestion.bytes_sent)} instead of "
            f"{units.size(suggestion.before)} and holds {units.size(suggestion.peak)} at the peak",
            style="dim",
        )
    yield Text("")


def _memory(report: ReportData) -> Iterator[RenderableType]:
    memory = report.memory
    place = f" at {memory.peak_where}" if memory.peak_where.file else ""
    yield _head("Memory of one device")
    yield Text(
        f"  arguments {units.size(memory.arguments)}, results {units.size(memory.results)}, "
        f"peak of live values {units.size(memory.peak)}{place}"
    )
    if memory.live:
        largest = (
            f"{value.what} {units.array(value.shape, value.dtype)} {units.size(value.bytes)}"
            for value in memory.live[:3]
        )
        yield Text(f"  largest at the peak: {', '.join(largest)}")
    yield Text("")


def _work(report: ReportData) -> Iterator[RenderableType]:
    work = report.work
    share = units.share(work.redundant / work.total) if work.total else "0 %"
    yield _head("Work")
    yield Text(
        f"  {units.large(work.flops, 'FLOP')} on each device, "
        f"{units.large(work.total, 'FLOP')} in all, {share} of it repeated on other devices"
    )
    if work.uncounted:
        yield Text(f"  not counted: {', '.join(work.uncounted)}")
    yield Text("")


def _cost(report: ReportData, cost: Cost) -> Iterator[RenderableType]:
    waiting = f", and {units.duration(cost.waiting)} waiting" if cost.waiting else ""
    yield Text.assemble(
        ("Cost", "bold"),
        f" on {cost.hardware.name}, by a model\n"
        f"  compute {units.duration(cost.compute)}, communication "
        f"{units.duration(cost.communication)} ({units.duration(cost.latency)} of it latency); "
        f"{units.between(cost.overlapped, cost.serial)} a step{waiting}",
    )
    for sentence in advice(report, cost):
        yield Padding(Text(sentence), (0, 0, 0, 2))
    if not cost.fits:
        memory = units.size(cost.hardware.memory)
        yield Text(f"  The peak does not fit a device: it has {memory}.", style="red")
    yield Text("")
    yield _head("Efficiency as an axis grows and each device keeps its work")
    sizes = [str(point.size) for point in cost.scaling[0].points] if cost.scaling else []
    table = _table("axis", *sizes, right=sizes)
    for curve in cost.scaling:
        bands = [_band(point.efficiency, point.efficiency_overlapped) for point in curve.points]
        table.add_row(Text(curve.axis, style=_color(report, (curve.axis,))), *bands)
    yield table
    yield Text("  in percent, without and with overlap\n")


def _band(low: float, high: float) -> str:
    low, high = sorted((round(100 * low), round(100 * high)))
    return f"{low}" if low == high else f"{low}-{high}"
