"""A whole report of `explain` as data, from which text, figures and files are derived."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ..._base.plain import Plain, plain
from ..._program import Where
from ..._program.where import NOWHERE
from .data import (
    ArrayLayout,
    CollectiveUse,
    Cost,
    Memory,
    MeshAxis,
    ProgramPart,
    Sharding,
    Suggestion,
    Traffic,
    Work,
)


@dataclasses.dataclass(frozen=True)
class Launch(Plain):
    """Adjacent collectives that can be sent as one message."""

    collectives: tuple[int, ...]
    """Their indices in `Report.collectives`."""
    bytes_sent: int
    """Sent by one device each time."""
    total_bytes: int
    """Sent by one device in total; a `while` counts as one iteration."""
    seconds: float | None = None
    """Seconds of all occurrences by the cost model, if hardware is given."""


@dataclasses.dataclass(frozen=True)
class Saving(Plain):
    """Collectives of one line that are redundant for one reason."""

    reason: str
    remedy: str
    where: Where
    collectives: tuple[int, ...]
    """Their indices in `Report.collectives`."""
    bytes: int
    """Bytes that one device would save in one call; a `while` counts as one iteration."""
    seconds: float | None
    """Seconds saved by the cost model, if hardware is given."""
    memory: int
    """Bytes that one device would have to keep for it."""


@dataclasses.dataclass(frozen=True)
class Remark(Plain):
    """A finding of `check` or `prove`, with the collectives that it is about."""

    code: str
    message: str
    remedy: str
    where: Where
    certain: bool
    collectives: tuple[int, ...]
    """Indices of the collectives on its line; empty if a collective is missing there."""


@dataclasses.dataclass(frozen=True)
class ReportData(Plain):
    """A whole report: what a sharded program sends, stores and costs.

    Functions that print, draw or save a report take this class; `Report` adds them as methods.
    """

    name: str
    """The name of the function."""
    mesh: tuple[MeshAxis, ...]
    arguments: tuple[ArrayLayout, ...]
    results: tuple[ArrayLayout, ...]
    collectives: tuple[CollectiveUse, ...]
    """In program order."""
    steps: tuple[ProgramPart, ...]
    """The program, in program order."""
    traffic: tuple[Traffic, ...]
    memory: Memory
    work: Work
    cost: Cost | None = None
    notes: tuple[str, ...] = ()
    """What the numbers do not cover, in sentences."""
    findings: tuple[Remark, ...] = ()
    """Findings of `check` or `prove`, after `Report.beside`."""
    source: Where = NOWHERE
    """Where the function is defined, if that is known."""
    command: str = ""
    """The command that produced the report, if any."""
    compiled: bool = False
    """Whether the collectives are those of the compiled program."""
    shardings: tuple[Sharding, ...] = ()
    """How the compiler shards the values of each line, if the program was compiled."""
    suggestions: tuple[Suggestion, ...] = ()
    """Constraints that were compiled and send less, the best first, if requested."""

    @property
    def devices(self) -> int:
        """The number of devices of the mesh."""
        return math.prod(axis.size for axis in self.mesh)

    @property
    def bytes_sent(self) -> int:
        """Sent by one device in one call; a `while` counts as one iteration."""
        return sum(row.bytes for row in self.traffic)

    @property
    def redundant(self) -> tuple[CollectiveUse, ...]:
        """The collectives proved to send more than necessary, in program order."""
        return tuple(use for use in self.collectives if use.redundant and use.counted)

    @property
    def savings(self) -> tuple[Saving, ...]:
        """Redundant traffic by line and reason: the largest first, trade-offs with memory last."""
        groups: dict[Any, list[int]] = {}
        for place, use in enumerate(self.collectives):
            if use.redundant is not None and use.counted:
                reason = use.redundant.reason, use.redundant.remedy
                groups.setdefault((*reason, use.where.file, use.where.line), []).append(place)
        savings = [self._saving(tuple(places)) for places in groups.values()]
        return tuple(sorted(savings, key=lambda saving: (saving.memory > 0, -saving.bytes)))

    def _saving(self, places: tuple[int, ...]) -> Saving:
        uses = [self.collectives[place] for place in places]
        parts = [use.redundant for use in uses if use.redundant is not None]
        return Saving(
            parts[0].reason,
            parts[0].remedy,
            uses[0].where,
            places,
            sum(redundant.bytes for redundant in parts),
            sum(self.cost.saved[place] for place in places) if self.cost else None,
            sum(redundant.memory for redundant in parts),
        )

    @property
    def redundant_bytes(self) -> int:
        """Bytes that one device sends in one call but could save at no cost in memory."""
        parts = (use.redundant for use in self.redundant)
        return sum(part.bytes for part in parts if part is not None and not part.memory)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The collectives, grouped by message."""
        rows: dict[int, list[int]] = {}
        for place, use in enumerate(self.collectives):
            rows.setdefault(use.launch, []).append(place)
        return tuple(
            Launch(
                tuple(places),
                sum(self.collectives[place].bytes_sent for place in places),
                sum(self.collectives[place].total_bytes for place in places),
                sum(self.cost.collectives[place] for place in places) if self.cost else None,
            )
            for places in rows.values()
        )

    @property
    def unknown(self) -> bool:
        """Whether a trip count is unknown, so that totals are lower bounds."""
        return any(use.count is None for use in self.collectives)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole report as plain data."""
        sums = {"devices": self.devices, "bytes_sent": self.bytes_sent, "unknown": self.unknown}
        sums["redundant_bytes"] = self.redundant_bytes
        lists = {"launches": plain(self.launches), "savings": plain(self.savings)}
        return {**super().to_dict(), **sums, **lists}
