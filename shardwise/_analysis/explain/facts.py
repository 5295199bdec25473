"""A whole report of `explain`, as data. Text, pictures and files look at it, and only so."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ..._program import Where
from ..._program.where import NOWHERE
from .data import (
    CollectiveUse,
    Cost,
    Held,
    Memory,
    MeshAxis,
    Plain,
    Sharding,
    Step,
    Suggestion,
    Traffic,
    Work,
    plain,
)


@dataclasses.dataclass(frozen=True)
class Launch(Plain):
    """Collectives that stand side by side and can be sent as one message."""

    collectives: tuple[int, ...]
    """Their places in `Report.collectives`."""
    bytes_sent: int
    """By one device, each time."""
    total_bytes: int
    """By one device, all times; those in a `while` taken once."""
    seconds: float | None = None
    """Of all times by the cost model, where there is a hardware."""


@dataclasses.dataclass(frozen=True)
class Saving(Plain):
    """Collectives of one line that are redundant for one reason."""

    reason: str
    remedy: str
    where: Where
    collectives: tuple[int, ...]
    """Their places in `Report.collectives`."""
    bytes: int
    """That one device would not send in one call; each `while` taken once."""
    seconds: float | None
    """That this saves by the cost model, where there is a hardware."""
    memory: int
    """Bytes that one device would have to keep for it."""


@dataclasses.dataclass(frozen=True)
class Remark(Plain):
    """A finding of `check` or `prove`, beside the traffic that it is about."""

    code: str
    message: str
    remedy: str
    where: Where
    certain: bool
    collectives: tuple[int, ...]
    """Those of `Report.collectives` that stand in its line; none, if one is missing there."""


@dataclasses.dataclass(frozen=True)
class Facts(Plain):
    """A whole report: what a sharded program sends, holds and costs.

    All that prints, draws or saves one takes these; `Report` has them as methods.
    """

    name: str
    """The function."""
    mesh: tuple[MeshAxis, ...]
    arguments: tuple[Held, ...]
    results: tuple[Held, ...]
    collectives: tuple[CollectiveUse, ...]
    """In program order."""
    steps: tuple[Step, ...]
    """The program from top to bottom."""
    traffic: tuple[Traffic, ...]
    memory: Memory
    work: Work
    cost: Cost | None = None
    notes: tuple[str, ...] = ()
    """What the numbers do not cover, in sentences."""
    findings: tuple[Remark, ...] = ()
    """What `check` or `prove` found, where `beside` was asked."""
    source: Where = NOWHERE
    """Where the function is defined, as far as that is known."""
    command: str = ""
    """The command that made the report, if one did."""
    compiled: bool = False
    """Whether the collectives are those of the compiled program."""
    shardings: tuple[Sharding, ...] = ()
    """How the compiler shards the values of each line, where the program was compiled."""
    suggestions: tuple[Suggestion, ...] = ()
    """Constraints that were compiled and send less, the least first; where they were asked for."""

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        return math.prod(axis.size for axis in self.mesh)

    @property
    def bytes_sent(self) -> int:
        """By one device in one call; collectives in a `while` taken once."""
        return sum(one.bytes for one in self.traffic)

    @property
    def redundant(self) -> tuple[CollectiveUse, ...]:
        """The collectives that are proved to send more than they have to, in program order."""
        return tuple(use for use in self.collectives if use.redundant and use.counted)

    @property
    def savings(self) -> tuple[Saving, ...]:
        """What is redundant, by line and reason: the largest first, what costs memory last."""
        groups: dict[Any, list[int]] = {}
        for place, use in enumerate(self.collectives):
            if use.redundant is not None and use.counted:
                why = use.redundant.reason, use.redundant.remedy
                groups.setdefault((*why, use.where.file, use.where.line), []).append(place)
        found = [self._saving(tuple(places)) for places in groups.values()]
        return tuple(sorted(found, key=lambda one: (one.memory > 0, -one.bytes)))

    def _saving(self, places: tuple[int, ...]) -> Saving:
        uses = [self.collectives[place] for place in places]
        what = [use.redundant for use in uses if use.redundant is not None]
        return Saving(
            what[0].reason,
            what[0].remedy,
            uses[0].where,
            places,
            sum(one.bytes for one in what),
            sum(self.cost.saved[place] for place in places) if self.cost else None,
            sum(one.memory for one in what),
        )

    @property
    def redundant_bytes(self) -> int:
        """That one device sends in one call and would not have to, at no price."""
        found = (use.redundant for use in self.redundant)
        return sum(one.bytes for one in found if one is not None and not one.memory)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The collectives, those that can be sent as one message together."""
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
        """Whether some trip count is not known, so that totals are the least there can be."""
        return any(one.count is None for one in self.collectives)

    def to_dict(self) -> dict[str, Any]:
        """The whole report as plain data."""
        sums = {"devices": self.devices, "bytes_sent": self.bytes_sent, "unknown": self.unknown}
        sums["redundant_bytes"] = self.redundant_bytes
        lists = {"launches": plain(self.launches), "savings": plain(self.savings)}
        return {**super().to_dict(), **sums, **lists}
