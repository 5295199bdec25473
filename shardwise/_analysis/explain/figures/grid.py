"""Arrange the devices of a mesh in rows and columns.

The last mesh axis runs across and the one before it down; two more axes, if there are any, run
across and down in blocks of these. Large axes are cut, with an ellipsis; along axes beyond the
fourth only the first coordinate is drawn. Axes of size 1 take no room.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from ..data import MeshAxis
from ..facts import ReportData
from ..units import some
from .draw import Drawing, axis_color

WIDTH = 260
"""The width of one grid of devices."""

CELL = 30
TICKS = 34
"""The room for the coordinates on the left."""

HEAD = 34
"""The room above the grid for the names and coordinates of the axes."""

Part = tuple[int, ...]
"""A part of an array: its index along each dimension that is split."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A row or a column: the coordinates of its devices, or None if they are omitted."""

    at: dict[str, int] | None
    offset: float


@dataclasses.dataclass(frozen=True)
class Grid:
    """Rows and columns of devices."""

    rows: list[Place]
    columns: list[Place]
    rest: dict[str, int]
    """The coordinates along axes that are not drawn."""
    cell: float
    gap: float = 2

    def cells(self) -> Iterator[tuple[int, int, dict[str, int]]]:
        """Yield row, column and coordinates of each device that is drawn."""
        for number, row in enumerate(self.rows):
            for index, column in enumerate(self.columns):
                if row.at is not None and column.at is not None:
                    yield number, index, {**self.rest, **row.at, **column.at}

    def box(self, row: int, column: int) -> tuple[float, float, float, float]:
        """Return where a device is drawn: left, top, width and height."""
        x, y = TICKS + self.columns[column].offset, HEAD + self.rows[row].offset
        return x, y, self.cell - self.gap, self.high - self.gap

    def joined(
        self, row: int, column: int, down: int, across: int, parts: dict[tuple[int, int], Part]
    ) -> bool:
        """Return whether a device holds the same part as its neighbour in the same block."""
        cell, neighbour = (row, column), (row + down, column + across)
        if neighbour not in parts or parts[cell] != parts[neighbour]:
            return False
        step = self.rows[neighbour[0]].offset - self.rows[row].offset
        step += self.columns[neighbour[1]].offset - self.columns[column].offset
        return step <= (self.high if down else self.cell) + 0.01

    @property
    def high(self) -> float:
        """The height of a row."""
        return max(18.0, min(self.cell, 26.0))


def empty_grid(report: ReportData, title: str, description: str) -> tuple[Drawing, Grid]:
    """Return a drawing with the names and coordinates of the axes, and the grid to fill."""
    grid = _grid(report.mesh)
    bottom = HEAD + grid.rows[-1].offset + grid.high
    names = _directions(report.mesh)
    drawing = Drawing(WIDTH, bottom + (16 if names[2] else 4), title, description)
    x, room = 0.0, WIDTH / max(1, sum(map(len, names[:2])))
    for arrow, axes in (("↓", names[0]), ("→", names[1])):
        for axis in axes:
            words = f"{axis.name} {arrow}" if axis is axes[-1] else f"{axis.name}."
            drawing.text(
                x,
                11,
                words,
                axis_color(report.mesh, axis.name),
                size=11,
                room=room,
                font_weight=600,
            )
            x += min(room, 6.6 * len(words) + (12 if axis is axes[-1] else 4))
    for column in range(len(grid.columns)):
        left, _, width, _ = grid.box(0, column)
        words = _tick(grid.columns[column], names[1])
        drawing.text(left + width / 2, HEAD - 6, words, "soft", size=9, anchor="middle")
    for row in range(len(grid.rows)):
        _, top, _, height = grid.box(row, 0)
        words = _tick(grid.rows[row], names[0])
        drawing.text(TICKS - 6, top + height / 2 + 3, words, "soft", size=9, anchor="end")
    drawn = {(row, column) for row, column, _ in grid.cells()}
    for row, column in itertools.product(range(len(grid.rows)), range(len(grid.columns))):
        if (row, column) in drawn:
            continue
        left, top, width, height = grid.box(row, column)
        drawing.text(left + width / 2, top + height / 2 + 3, "·", "soft", size=11, anchor="middle")
    if names[2]:
        words = "at 0 of " + ", ".join(axis.name for axis in names[2])
        drawing.text(TICKS, bottom + 12, words, "soft", size=10, room=WIDTH - TICKS)
    return drawing, grid


def _directions(mesh: Sequence[MeshAxis]) -> tuple[list[MeshAxis], list[MeshAxis], list[MeshAxis]]:
    """Return the axes that run down, those that run across, outer first, and those not drawn."""
    long = [axis for axis in mesh if axis.size > 1] or list(mesh[-1:])
    innermost = long[-4:]
    across = innermost[-1::-2][::-1]
    down = innermost[-2::-2][::-1]
    return down, across, long[:-4]


def _grid(mesh: Sequence[MeshAxis]) -> Grid:
    down, across, _ = _directions(mesh)
    columns = _places(across, 8)
    cell = min(CELL, (WIDTH - TICKS - 8 * (len(across) > 1)) / max(1, len(columns)))
    grid = Grid([], [], {axis.name: 0 for axis in mesh}, cell)
    rows = _places(down, 6)
    return dataclasses.replace(grid, columns=_spaced(columns, cell), rows=_spaced(rows, grid.high))


def _places(axes: list[MeshAxis], most: int) -> list[tuple[dict[str, int] | None, bool]]:
    """Return the coordinates drawn in one direction, and whether a block starts there."""
    if not axes:
        return [({}, False)]
    inner = axes[-1]
    if len(axes) == 1:
        return [(None if i is None else {inner.name: i}, False) for i in some(inner.size, most)]
    places = []
    for outer in some(axes[0].size, 3):
        block = some(inner.size, 4) if outer is not None else [None]
        for number, i in enumerate(block):
            left_out = outer is None or i is None
            position = None if left_out else {axes[0].name: outer, inner.name: i}
            places.append((position, number == 0 and bool(places)))
    return places


def _spaced(places: list[tuple[dict[str, int] | None, bool]], step: float) -> list[Place]:
    spaced, offset = [], 0.0
    for position, new_block in places:
        offset += 4 if new_block else 0
        spaced.append(Place(position, offset))
        offset += step
    return spaced


def _tick(place: Place, axes: list[MeshAxis]) -> str:
    if place.at is None:
        return "…"
    return ".".join(str(place.at[axis.name]) for axis in axes)


def coordinates(report: ReportData, at: dict[str, int]) -> str:
    """Format the coordinates of a device: `data 3, model 0`."""
    return ", ".join(f"{axis.name} {at[axis.name]}" for axis in report.mesh) or "the one device"


def label(
    drawing: Drawing, x: float, y: float, wide: float, high: float, words: str, color: str
) -> None:
    """Write text in the middle of a device, if it fits."""
    size = next((size for size in (10, 8.5, 7) if 0.6 * size * len(words) <= wide - 3), None)
    if size is not None:
        drawing.text(
            x + wide / 2, y + high / 2 + 0.36 * size, words, color, size=size, anchor="middle"
        )
