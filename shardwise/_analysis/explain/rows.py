"""Group the collectives of a report by source line, and find the most expensive ones."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from . import units
from .data import CollectiveUse
from .facts import ReportData


@dataclasses.dataclass(frozen=True)
class CollectiveRow:
    """Collectives of one line of the program that differ only in their arrays.

    The layers of a model that is a list of layers run the same line and so share a row.
    """

    report: ReportData
    places: tuple[int, ...]
    """Their indices in `Report.collectives`."""

    @property
    def uses(self) -> list[CollectiveUse]:
        """The collectives of the row."""
        return [self.report.collectives[place] for place in self.places]

    @property
    def first(self) -> CollectiveUse:
        """The first collective, which represents all."""
        return self.report.collectives[self.places[0]]

    @property
    def array(self) -> str:
        """The array that is sent, or the number of arrays."""
        return units.arrays([(use.shape, use.dtype) for use in self.uses])

    @property
    def of(self) -> str:
        """The argument that is sent; `params[*]['w']` for one of each layer."""
        return self._common([use.of for use in self.uses])

    @property
    def module(self) -> str:
        """The module that sends it, in the form of `of`."""
        return self._common([use.module for use in self.uses])

    def _common(self, paths: list[str]) -> str:
        return paths[0] if len(set(paths)) == 1 else _any_layer(paths[0])

    @property
    def holds(self) -> list[str]:
        """What devices hold before and after, without repetitions."""
        meanings = (use.meaning for use in self.uses)
        return list(dict.fromkeys(f"{m.before} → {m.after}" for m in meanings if m))

    @property
    def reasons(self) -> list[str]:
        """Why the compiler sends them, without repetitions."""
        return list(dict.fromkeys(use.why.reason for use in self.uses if use.why))

    @property
    def bytes(self) -> int:
        """Sent by one device in total, whether or not totals include it."""
        return sum(use.total_bytes for use in self.uses)

    @property
    def seconds(self) -> float:
        """Seconds of all occurrences by the cost model; 0 without hardware."""
        cost = self.report.cost
        return sum(cost.collectives[place] for place in self.places) if cost else 0.0

    @property
    def weight(self) -> float:
        """The cost: seconds if the hardware is known, else bytes; 0 if not counted."""
        if not self.first.counted:
            return 0.0
        return self.seconds if self.report.cost else self.bytes


def _any_layer(path: str) -> str:
    """Return a path with the numbers of layers replaced: `layers[*]`, `block_*`."""
    return re.sub(r"\[\d+\]|(?<=_)\d+\b", lambda match: "[*]" if match[0][0] == "[" else "*", path)


def rows_of(report: ReportData) -> list[CollectiveRow]:
    """Group the collectives by the line they come from, in program order."""
    rows: dict[Any, list[int]] = {}
    for place, use in enumerate(report.collectives):
        line = use.where
        key = (
            use.name,
            use.axes,
            use.count,
            use.direction,
            use.counted,
            _any_layer(use.module),
            use.by,
            _any_layer(use.of),
        )
        rows.setdefault((*key, use.group_size, line.file, line.line), []).append(place)
    return [CollectiveRow(report, tuple(places)) for places in rows.values()]


def most_expensive(report: ReportData) -> list[CollectiveRow]:
    """Return the most expensive row and those that cost as much; none if there is only one row."""
    rows = rows_of(report)
    first = max(rows, key=lambda row: row.weight, default=None)
    if first is None or not first.weight or len(rows) == 1:
        return []
    as_much = (row for row in rows if row.weight and _much(row) == _much(first))
    return [first, *(row for row in as_much if row is not first)]


def describe_most_expensive(report: ReportData) -> str:
    """Describe the most expensive rows in one line."""
    if not (rows := most_expensive(report)):
        return ""
    row, *equal = rows
    use, much = row.first, _much(row)
    if report.cost is not None:
        total, share_of = report.cost.communication, "of the communication"
    else:
        total, share_of = report.bytes_sent, "of what one device sends"
    label = "Most expensive" if report.cost is not None else "Most bytes"
    others = f"; as much at {places(equal)}" if equal else ""
    return (
        f"{label}: {use.name} over {units.axes(use.axes)}, {use.direction}, {use.where}, "
        f"{much}, {units.share(row.weight / total)} {share_of}{others}"
    )


def _much(row: CollectiveRow) -> str:
    return units.duration(row.weight) if row.report.cost else units.size(row.weight)


def places(rows: Sequence[CollectiveRow], most: int = 3) -> str:
    """Return their lines, each once: `a.py:3, a.py:7 and 2 more`."""
    lines = list(dict.fromkeys(str(row.first.where) for row in rows))
    if len(lines) > most:
        return f"{', '.join(lines[:most])} and {len(lines) - most} more"
    return " and ".join(filter(None, [", ".join(lines[:-1]), lines[-1]]))
