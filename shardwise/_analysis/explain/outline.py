"""Outline the program in order: what it computes, and the collectives in between.

Collectives that can be sent as one message form one entry, whose bar shows its share of the
largest: of the time if hardware is given, else of the bytes. Adjacent entries that are negligible
are merged into one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from . import units
from .data import CollectiveUse, Holding, ProgramPart, Redundant
from .facts import Launch, ReportData

SMALL = 0.005
"""Entries below this share of the whole are merged with their neighbours."""


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
        return units.arrays([(use.shape, use.dtype) for use in self.uses])

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
