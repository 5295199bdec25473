"""What is redundant about a program, one entry for each line and reason."""

from __future__ import annotations

import dataclasses

from .data import CollectiveUse, Facts, Redundant, Where


@dataclasses.dataclass(frozen=True)
class Waste:
    """Collectives of one line that are redundant for one reason."""

    reason: str
    remedy: str
    where: Where
    places: tuple[int, ...]
    """In `Report.collectives`."""
    bytes: int
    """That one device would not send in one call."""
    seconds: float | None
    """That this would save, where there is a hardware."""
    memory: int
    """Bytes that one device would have to keep for it."""


def wastes_of(report: Facts) -> list[Waste]:
    """The largest first; what costs memory last."""
    groups: dict[tuple, list[tuple[int, CollectiveUse, Redundant]]] = {}
    for place, use in enumerate(report.collectives):
        what = use.redundant
        if what is not None and use.counted:
            key = (what.reason, what.remedy, use.where.file, use.where.line)
            groups.setdefault(key, []).append((place, use, what))
    found = [_waste(report, group) for group in groups.values()]
    return sorted(found, key=lambda one: (one.memory > 0, -one.bytes))


def _waste(report: Facts, group: list[tuple[int, CollectiveUse, Redundant]]) -> Waste:
    places = tuple(place for place, _, _ in group)
    _, use, what = group[0]
    return Waste(
        what.reason,
        what.remedy,
        use.where,
        places,
        sum(one.bytes for _, _, one in group),
        None if report.cost is None else sum(report.cost.saved[place] for place in places),
        sum(one.memory for _, _, one in group),
    )
