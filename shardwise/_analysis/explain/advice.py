"""Say in sentences what takes longest, and which collectives cause it."""

from __future__ import annotations

from collections.abc import Iterator

from . import units
from .data import Cost
from .facts import Launch, ReportData
from .rows import CollectiveRow, places

NOTABLE = 0.2
"""The share of communication above which latency is reported."""

TOGETHER = "One {} of a tuple sends together those that do not need each other's results"
GRADIENTS = (
    "; gradients too, where jax.lax.pcast makes the parameters varying before they are "
    "differentiated and the psum is yours"
)


LONGEST = {
    "arithmetic": "Arithmetic takes longest.",
    "memory": "Reading and writing the devices' own memory takes longest.",
    "bandwidth": "Sending takes longest: fewer bytes would help.",
    "latency": "Waiting for messages takes longest: fewer and larger collectives would help.",
}
"""What takes longest, by `Cost.bound`."""


def advice(report: ReportData, cost: Cost) -> list[str]:
    """Return what takes longest, and what would make it shorter."""
    return [LONGEST[cost.bound], *_small(report, cost)]


def _small(report: ReportData, cost: Cost) -> Iterator[str]:
    """Yield a sentence for messages whose latency exceeds their transfer, by kind and axes."""
    if cost.latency < NOTABLE * cost.communication:
        return
    kinds: dict[tuple[str, tuple[str, ...]], list[Launch]] = {}
    for launch in report.launches:
        use = report.collectives[launch.collectives[0]]
        if use.counted and (launch.seconds or 0.0) < 2 * _waiting(cost, launch):
            kinds.setdefault((use.name, use.axes), []).append(launch)
    for (name, axes), launches in kinds.items():
        waiting = sum(_waiting(cost, small) for small in launches)
        if waiting >= NOTABLE * cost.latency:
            yield _sentence(report, cost, f"{name} over {units.axes(axes)}", launches, waiting)


def _waiting(cost: Cost, launch: Launch) -> float:
    return sum(cost.latencies[place] for place in launch.collectives)


def _sentence(
    report: ReportData, cost: Cost, what: str, launches: list[Launch], waiting: float
) -> str:
    firsts = [launch.collectives[0] for launch in launches]
    times = sum(report.collectives[place].least for place in firsts)
    lines = places([CollectiveRow(report, (place,)) for place in firsts])
    many = "1 small message" if times == 1 else f"{times:,} small messages"
    sentence = (
        f"{many} of {what} ({lines}) wait{'s' * (times == 1)} for {units.duration(waiting)} "
        f"of the {units.duration(cost.latency)} of latency."
    )
    if len(launches) == 1:
        return sentence
    backward = any(report.collectives[place].direction == "backward" for place in firsts)
    return f"{sentence} {TOGETHER.format(what.partition(' ')[0])}{GRADIENTS if backward else ''}."
