"""The mesh, once for each way in which arrays are laid out on it.

The last mesh axis runs across and the one before it down; two more axes, where there are any, run
across and down in blocks of these. What is larger than fits is cut, with an ellipsis. A device has
the colour of the part that it holds; devices that hold the same part are joined.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from .. import units
from ..report import Held, MeshAxis, Report
from .draw import Drawing, axis_color, part_color

WIDTH = 260
"""Of one grid of devices."""

CELL = 30
TICKS = 34
"""The room for the coordinates, to the left."""

HEAD = 34
"""The room above the grid: the names of the axes and their coordinates."""

Part = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Arrays whose parts lie on the devices in the same way."""

    split: tuple[tuple[str, ...], ...]
    """For each dimension that is split, the mesh axes, the slowest first."""
    arguments: tuple[Held, ...]
    results: tuple[Held, ...]

    def words(self, report: Report) -> str:
        """The layout in a sentence."""
        sizes = {axis.name: axis.size for axis in report.mesh}

        def named(names: Sequence[str]) -> str:
            return " × ".join(f"{name} ({sizes[name]})" for name in names)

        apart = [axis for names in self.split for axis in names]
        alike = [axis.name for axis in report.mesh if axis.name not in apart and axis.size > 1]
        if not self.split:
            return "Whole on every device" if report.devices > 1 else "Whole on the one device"
        head = "Split over " if len(self.split) == 1 else "Dimensions split over "
        head += " and over ".join(named(names) for names in self.split)
        return f"{head}; the same along {named(alike)}" if alike else f"{head}; no copies"

    def part(self, at: dict[str, int], sizes: dict[str, int]) -> Part:
        """The part that a device holds: its number along each dimension that is split."""
        found = []
        for names in self.split:
            number = 0
            for name in names:
                number = number * sizes[name] + at[name]
            found.append(number)
        return tuple(found)


def layouts(report: Report) -> list[Layout]:
    """The ways in which arrays are laid out, in the order in which they come."""
    rows: dict[tuple[tuple[str, ...], ...], tuple[list[Held], list[Held]]] = {}
    for place, held in enumerate((report.arguments, report.results)):
        for one in held:
            split = tuple(tuple(names) for names in one.spec if names)
            rows.setdefault(split, ([], []))[place].append(one)
    return [Layout(split, tuple(ins), tuple(outs)) for split, (ins, outs) in rows.items()]


def devices(report: Report) -> Drawing:
    """The devices by their numbers."""
    sizes = {axis.name: axis.size for axis in report.mesh}

    def number(at: dict[str, int]) -> int:
        found = 0
        for name, size in sizes.items():
            found = found * size + at[name]
        return found

    mesh = units.mesh([(axis.name, axis.size) for axis in report.mesh])
    drawing, grid = _start(report, "The devices of the mesh", f"{mesh}: {report.devices:,} devices")
    for row, column, at in grid.cells():
        x, y, wide, high = grid.box(row, column)
        drawing.rect(x, y, wide, high, "fill", hint=_at(report, at))
        _label(drawing, x, y, wide, high, str(number(at)), "soft")
    return drawing


def shards(report: Report, layout: Layout) -> Drawing:
    """Which part of its arrays each device holds."""
    sizes = {axis.name: axis.size for axis in report.mesh}
    paths = [one.path for one in (*layout.arguments, *layout.results)]
    listed = ", ".join(paths[:8]) + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")
    drawing, grid = _start(report, layout.words(report), f"Laid out so: {listed}")
    held = {(row, column): layout.part(at, sizes) for row, column, at in grid.cells()}
    order = {part: number for number, part in enumerate(sorted(set(held.values())))}
    for row, column, at in grid.cells():
        part = held[row, column]
        color, on_it = part_color(order[part], len(order)) if part else ("rest", "ink")
        x, y, wide, high = grid.box(row, column)
        right = grid.gap if grid.joined(row, column, 0, 1, held) else 0
        below = grid.gap if grid.joined(row, column, 1, 0, held) else 0
        which = "part " + ", ".join(map(str, part)) if part else "all of it"
        drawing.rect(x, y, wide + right, high + below, color, hint=f"{_at(report, at)}: {which}")
        _label(drawing, x, y, wide, high, ",".join(map(str, part)) or "all", on_it)
    return drawing


def figure(report: Report) -> Drawing:
    """The devices, and a grid for each layout with the arrays that have it."""
    found = layouts(report)
    panels = [(devices(report), ["The devices"]), *((shards(report, one), []) for one in found)]
    for (_, caption), layout in zip(panels[1:], found, strict=True):
        head, _, tail = layout.words(report).partition("; ")
        caption += [head, *filter(None, [tail]), *_named(layout)]
    across, gap = 2 if len(panels) == 4 else min(3, len(panels)), 28
    rows = [panels[start : start + across] for start in range(0, len(panels), across)]
    heights = [max(one.height + 17 * len(words) + 26 for one, words in row) for row in rows]
    mesh = units.mesh([(axis.name, axis.size) for axis in report.mesh])
    drawing = Drawing(
        across * (WIDTH + gap) - gap,
        sum(heights),
        f"Who holds what: {report.name} on {mesh}",
        "; ".join(f"{one.words(report)}: {', '.join(_named(one))}" for one in found),
    )
    y = 0.0
    for row, high in zip(rows, heights, strict=True):
        for number, (panel, words) in enumerate(row):
            x = number * (WIDTH + gap)
            drawing.place(panel, x, y)
            for line, text in enumerate(words):
                below = y + panel.height + 20 + 17 * line
                color = "soft" if line else "ink"
                drawing.text(x, below, text, color, size=11, room=WIDTH)
        y += high
    return drawing


def _named(layout: Layout, most: int = 5) -> list[str]:
    both = [*layout.arguments, *layout.results]
    lines = [f"{one.path} {units.array(one.local_shape, one.dtype)}" for one in both[:most]]
    return lines + ([f"and {len(both) - most} more"] if len(both) > most else [])


# --- the grid


@dataclasses.dataclass(frozen=True)
class Place:
    """A row or a column: the coordinates of its devices; None for those left out."""

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
        """Row, column and coordinates of each device that is drawn."""
        for number, row in enumerate(self.rows):
            for other, column in enumerate(self.columns):
                if row.at is not None and column.at is not None:
                    yield number, other, {**self.rest, **row.at, **column.at}

    def box(self, row: int, column: int) -> tuple[float, float, float, float]:
        """Where a device is drawn: left, top, width and height."""
        x, y = TICKS + self.columns[column].offset, HEAD + self.rows[row].offset
        return x, y, self.cell - self.gap, self.high - self.gap

    def joined(
        self, row: int, column: int, down: int, across: int, held: dict[tuple[int, int], Part]
    ) -> bool:
        """Whether a device holds what the next one does, and no block begins between them."""
        here, there = (row, column), (row + down, column + across)
        if there not in held or held[here] != held[there]:
            return False
        step = self.rows[there[0]].offset - self.rows[row].offset
        step += self.columns[there[1]].offset - self.columns[column].offset
        return step <= (self.high if down else self.cell) + 0.01

    @property
    def high(self) -> float:
        """The height of a row."""
        return max(18.0, min(self.cell, 26.0))


def _start(report: Report, title: str, description: str) -> tuple[Drawing, Grid]:
    """An empty drawing with the names and coordinates of the axes, and the grid to fill."""
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
        left, _, wide, _ = grid.box(0, column)
        words = _tick(grid.columns[column], names[1])
        drawing.text(left + wide / 2, HEAD - 6, words, "soft", size=9, anchor="middle")
    for row in range(len(grid.rows)):
        _, top, _, high = grid.box(row, 0)
        words = _tick(grid.rows[row], names[0])
        drawing.text(TICKS - 6, top + high / 2 + 3, words, "soft", size=9, anchor="end")
    for row, column in _left_out(grid):
        left, top, wide, high = grid.box(row, column)
        drawing.text(left + wide / 2, top + high / 2 + 3, "·", "soft", size=11, anchor="middle")
    if names[2]:
        words = "at 0 of " + ", ".join(axis.name for axis in names[2])
        drawing.text(TICKS, bottom + 12, words, "soft", size=10, room=WIDTH - TICKS)
    return drawing, grid


def _directions(mesh: Sequence[MeshAxis]) -> tuple[list[MeshAxis], list[MeshAxis], list[MeshAxis]]:
    """The axes that run down, those that run across, the outer first, and those not drawn."""
    long = [axis for axis in mesh if axis.size > 1] or list(mesh[-1:])
    drawn = long[-4:]
    across = drawn[-1::-2][::-1]
    down = drawn[-2::-2][::-1]
    return down, across, long[:-4]


def _grid(mesh: Sequence[MeshAxis]) -> Grid:
    down, across, _ = _directions(mesh)
    columns = _places(across, 8)
    cell = min(CELL, (WIDTH - TICKS - 8 * (len(across) > 1)) / max(1, len(columns)))
    grid = Grid([], [], {axis.name: 0 for axis in mesh}, cell)
    rows = _places(down, 6)
    return dataclasses.replace(grid, columns=_spaced(columns, cell), rows=_spaced(rows, grid.high))


def _places(axes: list[MeshAxis], most: int) -> list[tuple[dict[str, int] | None, bool]]:
    """The coordinates drawn in one direction, and whether a block begins there."""
    if not axes:
        return [({}, False)]
    inner = axes[-1]
    if len(axes) == 1:
        return [(_coordinate(inner, i), False) for i in some(inner.size, most)]
    found = []
    for outer in some(axes[0].size, 3):
        block = some(inner.size, 4) if outer is not None else [None]
        for number, i in enumerate(block):
            left_out = outer is None or i is None
            at = None if left_out else {axes[0].name: outer, inner.name: i}
            found.append((at, number == 0 and bool(found)))
    return found


def _coordinate(axis: MeshAxis, i: int | None) -> dict[str, int] | None:
    return None if i is None else {axis.name: i}


def _spaced(places: list[tuple[dict[str, int] | None, bool]], step: float) -> list[Place]:
    found, offset = [], 0.0
    for at, new_block in places:
        offset += 4 if new_block else 0
        found.append(Place(at, offset))
        offset += step
    return found


def some(size: int, most: int) -> list[int | None]:
    """The coordinates that are drawn: all, or the first ones, None and the last."""
    if size <= most:
        return list(range(size))
    return [*range(most - 2), None, size - 1]


def _left_out(grid: Grid) -> Iterator[tuple[int, int]]:
    for row, down in enumerate(grid.rows):
        for column, across in enumerate(grid.columns):
            if down.at is None or across.at is None:
                yield row, column


def _tick(place: Place, axes: list[MeshAxis]) -> str:
    if place.at is None:
        return "…"
    return ".".join(str(place.at[axis.name]) for axis in axes)


def _at(report: Report, at: dict[str, int]) -> str:
    return ", ".join(f"{axis.name} {at[axis.name]}" for axis in report.mesh) or "the one device"


def _label(
    drawing: Drawing, x: float, y: float, wide: float, high: float, words: str, color: str
) -> None:
    """Words in the middle of a device, where they fit."""
    size = next((size for size in (10, 8.5, 7) if 0.6 * size * len(words) <= wide - 3), None)
    if size is not None:
        drawing.text(
            x + wide / 2, y + high / 2 + 0.36 * size, words, color, size=size, anchor="middle"
        )
