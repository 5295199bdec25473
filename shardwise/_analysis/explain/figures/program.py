"""Draw the program in order: what it computes, and the collectives in between.

`outline` is the structure that the page and the figure share: collectives that can be sent as one
message form one entry, whose bar shows its share of the largest: of the time if hardware is given,
else of the bytes. Adjacent entries that are negligible are merged into one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from .. import units
from ..data import CollectiveUse, Holding, ProgramPart, Redundant
from ..facts import Launch, ReportData
from .draw import Drawing, axes_used, axis_colors

ROWS = 160
"""The number of rows of a figure; the rest is left out."""

SMALL = 0.005
"""Entries below this share of the whole are merged with their neighbours."""

ROW = 22
LABELS, BARS, NUMBERS = 340, 230, 170
"""The columns of the figure: description, bar and figures."""

INDENT = 18
LEFT = 74
"""The room for the words forward, backward and update."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A part of the program as it is drawn."""

    step: ProgramPart
    """The step; the first one of several collectives."""
    launch: Launch | None = None
    uses: tuple[CollectiveUse, ...] = ()
    """The collectives that are sent together, if it is one message."""
    length: float = 0.0
    """For collectives: time or bytes as a share of the largest entry's."""
    bodies: tuple[tuple[Entry, ...], ...] = ()
    part: float = 1.0
    """The share of the program's time, or of its bytes and work if no time is known."""
    small: tuple[Entry, ...] = ()
    """Adjacent negligible entries that this one replaces."""

    @property
    def array(self) -> str:
        """The array that is sent, or the number of arrays."""
        types = {units.array(use.shape, use.dtype) for use in self.uses}
        times = f" × {len(self.uses)}" if len(self.uses) > 1 else ""
        return types.pop() + times if len(types) == 1 else f"{len(self.uses)} arrays"

    @property
    def redundant(self) -> tuple[Redundant, ...]:
        """What is redundant about it, without repetitions."""
        by_reason = {use.redundant.reason: use.redundant for use in self.uses if use.redundant}
        return tuple(by_reason.values())

    @property
    def holds(self) -> tuple[Holding, ...]:
        """What devices hold before and after it, without repetitions."""
        return tuple(dict.fromkeys(use.meaning for use in self.uses if use.meaning))

    @property
    def names(self) -> str:
        """For merged entries: what they are."""
        kinds = (
            f"{part.uses[0].name} over {units.axes(part.uses[0].axes)}" if part.uses else "compute"
            for part in self.small
        )
        return ", ".join(dict.fromkeys(kinds))

    @property
    def title(self) -> str:
        """What kind of loop or branch it is, and how often it runs."""
        step = self.step
        match step.kind:
            case "scan":
                return f"scan, {step.length} time{'s' * (step.length != 1)}"
            case "while":
                return "while, as often as it decides"
        return f"cond, one of {len(step.bodies)} branches"


def outline(report: ReportData) -> tuple[Entry, ...]:
    """Return the structure of the program as it is drawn."""
    return _Outline(report).entries(report.steps, 1)


class _Outline:
    def __init__(self, report: ReportData):
        self.report = report
        self.launches = {i: launch for launch in report.launches for i in launch.collectives}
        self.most = max((self.weight(launch) for launch in self.launches.values()), default=0)
        self.with_findings = {i for remark in report.findings for i in remark.collectives}

    def weight(self, launch: Launch) -> float:
        """Return what a bar shows: the time if it is known, else the bytes."""
        return launch.total_bytes if launch.seconds is None else launch.seconds

    def entries(self, steps: Sequence[ProgramPart], times: int) -> tuple[Entry, ...]:
        rows = list(self._each(steps, times))
        # A single small entry is not merged: the line that replaces it would take as much room.
        groups = ((key, list(group)) for key, group in itertools.groupby(rows, self._is_small))
        return tuple(
            entry
            for small, group in groups
            for entry in ([self._folded(group)] if small and len(group) > 1 else group)
        )

    def _each(self, steps: Sequence[ProgramPart], times: int) -> Iterator[Entry]:
        for step in steps:
            if step.collective is None:
                inner = times * (step.length or 1)
                bodies = tuple(self.entries(body, inner) for body in step.bodies)
                yield Entry(step, bodies=bodies, part=self._part(step, times))
                continue
            launch = self.launches[step.collective]
            if step.collective == launch.collectives[0]:
                uses = tuple(self.report.collectives[place] for place in launch.collectives)
                length = self.weight(launch) / self.most if self.most else 0.0
                yield Entry(step, launch, uses, length, part=self._sent(launch))

    def _part(self, step: ProgramPart, times: int) -> float:
        work, cost = self.report.work, self.report.cost
        if cost is not None:
            return times * (step.seconds or 0.0) / cost.serial if cost.serial else 0.0
        shares = [(step.flops, work.flops), (step.moved, work.moved)]
        return max(times * amount / total if total else 0.0 for amount, total in shares)

    def _sent(self, launch: Launch) -> float:
        cost, bytes_sent = self.report.cost, self.report.bytes_sent
        if cost is not None and launch.seconds is not None:
            return launch.seconds / cost.serial if cost.serial else 0.0
        return launch.total_bytes / bytes_sent if bytes_sent else 0.0

    def _is_small(self, entry: Entry) -> bool:
        """Return whether an entry is negligible and has no findings."""
        has_finding = entry.launch is not None and self.with_findings.intersection(
            entry.launch.collectives
        )
        return not (entry.bodies or entry.redundant or has_finding) and entry.part < SMALL

    def _folded(self, group: list[Entry]) -> Entry:
        return Entry(group[0].step, small=tuple(group), part=sum(entry.part for entry in group))


@dataclasses.dataclass(frozen=True)
class FigureRow:
    """A row of the figure."""

    entry: Entry
    depth: int
    ends: int
    """For a loop or branch: the index of the row after its last inner row."""
    branch: str = ""
    counted: bool = True


def _rows(
    entries: Sequence[Entry], start: int = 0, depth: int = 0, counted: bool = True
) -> Iterator[FigureRow]:
    for entry in entries:
        if not entry.bodies:
            yield FigureRow(entry, depth, start + 1, counted=counted)
            start += 1
            continue
        inner: list[FigureRow] = []
        for number, body in enumerate(entry.bodies):
            in_totals = counted and (len(entry.bodies) == 1 or number == entry.step.counted)
            if len(entry.bodies) > 1:
                branch_rows = list(_rows(body, start + len(inner) + 2, depth + 2, in_totals))
                ends = start + len(inner) + 2 + len(branch_rows)
                inner.append(FigureRow(entry, depth + 1, ends, f"branch {number}", in_totals))
                inner.extend(branch_rows)
            else:
                inner.extend(_rows(body, start + 1, depth + 1, in_totals))
        yield FigureRow(entry, depth, start + 1 + len(inner), counted=counted)
        yield from inner
        start += 1 + len(inner)


def figure(report: ReportData) -> Drawing:
    """Draw the program: a row for each part, a bar for each collective."""
    rows = list(_rows(outline(report)))
    shown, left_out = rows[:ROWS], len(rows) - ROWS
    width = LEFT + LABELS + BARS + NUMBERS
    height = ROW * (len(shown) + (left_out > 0)) + 52
    drawing = Drawing(width, height, f"{report.name} from top to bottom", _words(report))
    bar = "sent by one device in one call"
    if report.cost is not None:
        bar = f"time of the collectives in one call, modelled on {report.cost.hardware.name}"
    for x, words in ((LEFT, "what"), (LEFT + LABELS, bar)):
        drawing.text(x, 20, words, "soft", size=11, room=BARS + NUMBERS)
    drawing.legend = axes_used(report)
    _passes(drawing, shown)
    for number, row in enumerate(shown):
        _draw(drawing, report, row, number, len(shown))
    if left_out > 0:
        drawing.text(LEFT, _top(len(shown)) + 15, f"… {left_out} more rows", "soft")
    return drawing


def _top(number: int) -> float:
    return 32 + ROW * number


def _passes(drawing: Drawing, rows: list[FigureRow]) -> None:
    """Mark on the left where each pass begins and ends."""
    start = 0
    for number in range(1, len(rows) + 1):
        direction = rows[start].entry.step.direction
        if number < len(rows) and rows[number].entry.step.direction == direction:
            continue
        top, high = _top(start), ROW * (number - start)
        color = "soft" if direction == "forward" else "ink"
        drawing.rect(LEFT - 12, top + 2, 3, high - 4, color, hint=direction)
        if high > ROW or start == 0:
            drawing.text(LEFT - 18, top + 15, direction, color, size=10.5, anchor="end")
        start = number


def _draw(drawing: Drawing, report: ReportData, row: FigureRow, number: int, rows: int) -> None:
    entry, step = row.entry, row.entry.step
    x, y = LEFT + INDENT * row.depth, _top(number)
    room = LABELS - INDENT * row.depth - 12
    faint: dict[str, Any] = {} if row.counted else {"opacity": 0.5}
    if entry.bodies:
        high = ROW * (min(row.ends, rows) - number)
        drawing.rect(x, y + 1, LEFT + LABELS + BARS + NUMBERS - x - 8, high - 2, "fill", rx=3)
        drawing.path(f"M{x + 1},{y + 1}v{high - 2}", "soft", stroke_width=1.5)
        words = row.branch or entry.title
        if row.branch and not row.counted:
            words += ", not in the totals"
        drawing.text(x + 8, y + 15, words, room=room, size=11.5, font_weight=600, **faint)
    elif entry.small:
        words = f"small parts: {entry.names}"
        drawing.text(x + 8, y + 15, words, "soft", size=11, room=room, **faint)
    elif entry.launch is None:
        drawing.text(x + 8, y + 15, _compute(step), "soft", size=11, room=room, **faint)
    else:
        use = entry.uses[0]
        colors = axis_colors(report, use.axes)
        words = f"{use.name} over {units.axes(use.axes)}  {entry.array}"
        place = f"line {use.where.line}" if use.where.file else ""
        line_width = 6.2 * len(place)
        drawing.text(x + 8, y + 15, words, room=room - line_width, **faint)
        edge = LEFT + LABELS - 10
        drawing.text(edge, y + 15, place, "soft", size=10.5, anchor="end", **faint)
        hint = f"{words}, {use.where}: {use.where.text}"
        length = max(1.5, entry.length * (BARS - 20))
        drawing.bar(LEFT + LABELS, y + 4, length, ROW - 8, colors, hint, **faint)
        times = {1: "", None: ", times unknown"}.get(use.count, f" in {use.count} times")
        launch = entry.launch
        total: float = launch.total_bytes
        words = units.size(total) + times
        if launch.seconds is not None:
            total = launch.seconds
            words = f"{units.duration(total)}, {words}"
        if entry.redundant:
            words += ", redundant"
        drawing.text(LEFT + LABELS + length + 8, y + 15, words, size=11, value=total, **faint)


def _compute(step: ProgramPart) -> str:
    return f"compute, {units.large(step.flops, 'FLOP')}" if step.flops else "compute"


def _words(report: ReportData) -> str:
    if not report.collectives:
        return "It has no collectives."
    descriptions = (
        f"{use.name} over {units.axes(use.axes)}, {units.size(use.total_bytes)}, {use.direction}"
        for use in report.collectives[:40]
    )
    more = len(report.collectives) - 40
    return "; ".join(descriptions) + (f"; and {more} more" if more > 0 else "")
