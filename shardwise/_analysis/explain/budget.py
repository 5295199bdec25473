"""Check bounds on what a program sends and stores, and list the rows that exceed them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ..._base.errors import ArgumentError, ShardwiseError, did_you_mean
from ..._program.primitives import COLLECTIVES as FORMS
from . import units
from .data import CollectiveUse
from .facts import ReportData

COLLECTIVES = (*dict.fromkeys(form.name for form in FORMS.values()), "all_reduce", "collectives")
"""The names that can be counted; `collectives` counts all of them."""

Bound = float | Mapping[str, float]
"""One number, or one for each mesh axis."""


class BudgetError(ShardwiseError, AssertionError):
    """A program sends or stores more than expected."""


@dataclasses.dataclass(frozen=True)
class Excess:
    """A bound that is exceeded."""

    what: str
    actual: float
    bound: float
    uses: tuple[CollectiveUse, ...]
    """The collectives that add up to it, the largest first; empty for memory."""

    def __str__(self) -> str:
        show = units.size if self.what.startswith(("bytes", "peak")) else "{:g}".format
        lines = [f"{self.what} is {show(self.actual)}, and at most {show(self.bound)} is expected"]
        for use in self.uses:
            times = "" if use.least == 1 else f" × {use.least}"
            argument = f" of {use.of}" if use.of else ""
            array = units.array(use.shape, use.dtype)
            lines.append(
                f"    {use.name} over {units.axes(use.axes)}{argument}, {array}{times}, "
                f"{units.size(use.total_bytes)}, {use.direction}, by the {use.by}: {use.where}"
            )
            if use.where.text:
                lines.append(f"        {use.where.text}")
        return "\n".join(lines)


def excesses(report: ReportData, bounds: Mapping[str, Bound]) -> list[Excess]:
    """Return every bound that the report exceeds."""
    for name, bound in bounds.items():
        _refuse_other(name, bound, report)
    return [excess for name, bound in bounds.items() for excess in _exceeded(report, name, bound)]


def refuse_excess(report: ReportData, bounds: Mapping[str, Bound]) -> None:
    """Raise `BudgetError` with the rows that exceed a bound."""
    if exceeded := excesses(report, bounds):
        head = f"{report.name} on {units.mesh(report.mesh)}"
        raise BudgetError("\n".join([f"{head} exceeds its budget:", *map(str, exceeded)]))


def _exceeded(report: ReportData, name: str, bound: Bound) -> Iterator[Excess]:
    if name == "peak_memory":
        assert not isinstance(bound, Mapping)
        if report.memory.peak > bound:
            yield Excess("peak memory", report.memory.peak, bound, ())
        return
    bounds = bound if isinstance(bound, Mapping) else {"": bound}
    for axis, limit in bounds.items():
        uses = [
            use
            for use in report.collectives
            if use.counted and (not axis or axis in use.axes) and _is_counted(use, name)
        ]
        total = sum(use.total_bytes if name == "bytes_sent" else use.least for use in uses)
        if total > limit:
            uses.sort(key=lambda use: -use.total_bytes)
            axis_text = f" over {axis}" if axis else ""
            figure = "bytes sent" if name == "bytes_sent" else f"the number of {name}"
            yield Excess(f"{figure}{axis_text}", total, limit, tuple(uses))


def _is_counted(use: CollectiveUse, name: str) -> bool:
    return name in ("bytes_sent", "collectives", use.name)


def _refuse_other(name: str, bound: Any, report: ReportData) -> None:
    figures = ("bytes_sent", "peak_memory", *COLLECTIVES)
    if name not in figures:
        raise ArgumentError(
            f"there is no figure {name!r}",
            where="report.expect",
            rule=f"There are {', '.join(figures)}.",
            remedy=did_you_mean(name, figures) or "report.expect(all_gather=0)",
        )
    bounds = bound if isinstance(bound, Mapping) and name != "peak_memory" else {"": bound}
    axes = [mesh_axis.name for mesh_axis in report.mesh]
    for axis, limit in bounds.items():
        if axis and axis not in axes:
            raise ArgumentError(
                f"{name} is bounded over {axis!r}",
                where="report.expect",
                rule=f"The mesh has {', '.join(axes)}.",
                remedy=f"{name}={{{axes[0]!r}: ...}}" if axes else f"{name}=...",
            )
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0:
            raise ArgumentError(
                f"{name} is {limit!r}",
                where="report.expect",
                rule="A bound is a number, at least 0, or a dict of them by mesh axis.",
                remedy='report.expect(bytes_sent={"data": 1e6}, all_gather=0)',
            )
