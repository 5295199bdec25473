"""Draw the mesh once for each layout of arrays.

The colour of a device shows which part it holds; devices with the same part are joined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from .. import units
from ..data import ArrayLayout
from ..facts import ReportData
from .draw import Drawing, part_color
from .grid import Part, coordinates, empty_grid, label


@dataclasses.dataclass(frozen=True)
class Layout:
    """Arrays that are split over the devices in the same way."""

    split: tuple[tuple[str, ...], ...]
    """The mesh axes of each dimension that is split, the slowest first."""
    arguments: tuple[ArrayLayout, ...]
    results: tuple[ArrayLayout, ...]

    def words(self, report: ReportData) -> str:
        """Describe the layout in a sentence."""
        sizes = {axis.name: axis.size for axis in report.mesh}

        def named(names: Sequence[str]) -> str:
            return " × ".join(f"{name} ({sizes[name]})" for name in names)

        split_axes = [axis for names in self.split for axis in names]
        same = [axis.name for axis in report.mesh if axis.name not in split_axes and axis.size > 1]
        if not self.split:
            return "Whole on every device" if report.devices > 1 else "Whole on the one device"
        head = "Split over " if len(self.split) == 1 else "Dimensions split over "
        head += " and over ".join(named(names) for names in self.split)
        return f"{head}; the same along {named(same)}" if same else f"{head}; no copies"

    def part(self, at: dict[str, int], sizes: dict[str, int]) -> Part:
        """Return the part that a device holds: its index along each dimension that is split."""
        return tuple(_number(names, at, sizes) for names in self.split)


def _number(names: Iterable[str], at: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """Return the index of a device along several axes, the last of which runs fastest."""
    number = 0
    for name in names:
        number = number * sizes[name] + at[name]
    return number


def layouts(report: ReportData) -> list[Layout]:
    """Return the layouts of all arrays, in order of first use."""
    rows: dict[tuple[tuple[str, ...], ...], tuple[list[ArrayLayout], list[ArrayLayout]]] = {}
    for place, arrays in enumerate((report.arguments, report.results)):
        for array in arrays:
            split = tuple(tuple(names) for names in array.spec if names)
            rows.setdefault(split, ([], []))[place].append(array)
    return [Layout(split, tuple(ins), tuple(outs)) for split, (ins, outs) in rows.items()]


def devices(report: ReportData) -> Drawing:
    """Draw the devices with their numbers."""
    sizes = {axis.name: axis.size for axis in report.mesh}
    mesh = units.mesh(report.mesh)
    drawing, grid = empty_grid(
        report, "The devices of the mesh", f"{mesh}: {report.devices:,} devices"
    )
    for row, column, at in grid.cells():
        x, y, width, height = grid.box(row, column)
        drawing.rect(x, y, width, height, "fill", hint=coordinates(report, at))
        label(drawing, x, y, width, height, str(_number(sizes, at, sizes)), "soft")
    return drawing


def shards(report: ReportData, layout: Layout) -> Drawing:
    """Draw which part of its arrays each device holds."""
    sizes = {axis.name: axis.size for axis in report.mesh}
    paths = [array.path for array in (*layout.arguments, *layout.results)]
    listed = ", ".join(paths[:8]) + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")
    drawing, grid = empty_grid(report, layout.words(report), f"Arrays with this layout: {listed}")
    parts = {(row, column): layout.part(at, sizes) for row, column, at in grid.cells()}
    order = {part: number for number, part in enumerate(sorted(set(parts.values())))}
    for row, column, at in grid.cells():
        part = parts[row, column]
        color, on_it = part_color(order[part], len(order)) if part else ("rest", "ink")
        x, y, width, height = grid.box(row, column)
        right = grid.gap if grid.joined(row, column, 0, 1, parts) else 0
        below = grid.gap if grid.joined(row, column, 1, 0, parts) else 0
        which = "part " + ", ".join(map(str, part)) if part else "all of it"
        drawing.rect(
            x, y, width + right, height + below, color, hint=f"{coordinates(report, at)}: {which}"
        )
        label(drawing, x, y, width, height, ",".join(map(str, part)) or "all", on_it)
    return drawing
