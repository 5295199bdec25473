"""Estimate the time of a program with a latency-bandwidth model over the steps of a report.

A step takes the longer of its arithmetic and its memory traffic; a collective takes its bytes over
the bandwidth plus a latency for each round of messages. Mesh axes fill the nodes of the machine
from the last axis on. A group within a node uses its links; a group that spans several nodes works
in two levels, and the share of the bytes that leaves a node goes over the network:

    (m - 1) / (n - 1)    of a reduction or a gather, for n devices in m nodes
    (n - k) / (n - 1)    of an all-to-all, with k = n / m devices in a node
    all                  of a permutation or a broadcast
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from ..._program.collectives import sends
from ..._program.primitives import REDUCTIONS
from .data import CollectiveUse, Cost, Instead, ProgramPart, Scaling, ScalingPoint
from .facts import ReportData
from .hardware import Hardware, find

Kind = TypeVar("Kind", bound=ReportData)

SIZES = tuple(1 << power for power in range(11))
"""The sizes of an axis on a scaling curve: 1 to 1024."""

ASSUMPTIONS = (
    "This is a model, not a measurement.",
    "Arithmetic and memory traffic of a device overlap; the longer of the two counts. Both reach "
    "the share of the peak that the profile calls utilisation. Starting an operation is free.",
    "Collectives use ring algorithms at full bandwidth; each round of messages adds one latency, "
    "and the rounds of a reduction, a gather or a broadcast grow with the logarithm of the group.",
    "Collectives of one kind that stand side by side are sent as one message.",
    "The last mesh axes lie within a node. Links and network have their full speed.",
    "A step takes between `overlapped` (communication hidden behind compute as far as it goes) and "
    "`serial` (nothing hidden).",
    "`waiting` comes on top, and into the scaling curves: slower devices and a shared network add "
    "the share of a step that the profile calls waiting, for each doubling of the nodes.",
    "On a scaling curve every device keeps its work as the axis grows: the batch grows with it, "
    "trip counts stay, and what is gathered or scattered stays as large as a whole.",
)


@dataclasses.dataclass(frozen=True)
class Seconds:
    """The time of a collective, split by cause."""

    bandwidth: float = 0.0
    latency: float = 0.0

    @property
    def total(self) -> float:
        """The sum of both."""
        return self.bandwidth + self.latency


def with_cost(report: Kind, hardware: str | Hardware) -> Kind:
    """Return the report with a cost, and with seconds in its steps."""
    machine = find(hardware)
    sizes = {axis.name: axis.size for axis in report.mesh}
    firsts = {launch.collectives[0] for launch in report.launches}
    opens = [place in firsts for place in range(len(report.collectives))]
    times = [
        seconds(use, machine, sizes, first)
        for use, first in zip(report.collectives, opens, strict=True)
    ]
    steps = tuple(_timed(step, times, machine) for step in report.steps)
    rates = [(count, *_rates(step, machine)) for step, count in _parts(report.steps)]
    arithmetic = sum(count * computing for count, computing, _ in rates)
    moving = sum(count * loading for count, _, loading in rates)
    compute = sum(count * max(computing, loading) for count, computing, loading in rates)
    totals = [_all_times(use, time) for use, time in zip(report.collectives, times, strict=True)]
    bandwidth = sum(time.bandwidth for time in totals)
    latency = sum(time.latency for time in totals)
    takes = {"arithmetic": arithmetic, "memory": moving, "bandwidth": bandwidth, "latency": latency}
    communication = bandwidth + latency
    saved = _saved(report, totals, opens, machine)
    by_axes = _by_axes(report, [time.total for time in totals])
    cost = Cost(
        hardware=machine,
        compute=compute,
        arithmetic=arithmetic,
        moving=moving,
        communication=communication,
        latency=latency,
        serial=compute + communication,
        overlapped=max(compute, communication),
        waiting=(compute + communication) * _waiting(machine, sizes),
        bound=max(takes, key=lambda name: takes[name]),
        collectives=tuple(time.total for time in totals),
        latencies=tuple(time.latency for time in totals),
        saved=saved,
        redundant=sum(
            time
            for use, time in zip(report.collectives, saved, strict=True)
            if use.redundant and not use.redundant.memory
        ),
        by_axes=by_axes,
        fits=report.memory.peak <= machine.memory,
        scaling=tuple(_scaling(report, opens, axis.name, machine, compute) for axis in report.mesh),
        assumptions=ASSUMPTIONS,
    )
    spent = dict(by_axes)
    traffic = tuple(
        dataclasses.replace(
            row,
            seconds=spent[row.axes],
            time_share=spent[row.axes] / communication if communication else 0.0,
        )
        for row in report.traffic
    )
    return dataclasses.replace(report, steps=steps, traffic=traffic, cost=cost)


def seconds(
    use: CollectiveUse | Instead, machine: Hardware, sizes: Mapping[str, int], first: bool = True
) -> Seconds:
    """Return the time of one occurrence of a collective on a mesh of these sizes.

    `first` says that it opens a message; further collectives in it add no latency.
    """
    size = use.group_size
    if size <= 1 or not use.bytes_sent:
        return Seconds()
    nodes = _nodes(use, machine, sizes)
    away = use.bytes_sent * _share_away(use.name, size, nodes)
    bandwidth = away / machine.network_bandwidth
    bandwidth += (use.bytes_sent - away) / machine.link_bandwidth
    if not first:
        return Seconds(bandwidth)
    local_latency = _rounds(use.name, -(-size // nodes)) * machine.link_latency
    return Seconds(bandwidth, local_latency + _rounds(use.name, nodes) * machine.network_latency)


def _nodes(use: CollectiveUse | Instead, machine: Hardware, sizes: Mapping[str, int]) -> int:
    """Return the number of nodes that a group spans; the last mesh axes share a node."""
    spread, room = 1, machine.node
    for name in reversed(list(sizes)):
        in_node = sizes[name] if sizes[name] <= room else math.gcd(sizes[name], room)
        room //= in_node
        if name in use.axes:
            spread *= sizes[name] // in_node
    return min(spread, use.group_size)


def _share_away(name: str, n: int, nodes: int) -> float:
    """Return the share of a device's bytes that leaves its node."""
    if nodes == 1:
        return 0.0
    if name in ("ppermute", "pbroadcast"):
        return 1.0
    if name == "all_to_all":
        return (n - n / nodes) / (n - 1)
    return (nodes - 1) / (n - 1)


def _rounds(name: str, n: int) -> int:
    """Return the number of consecutive messages in a group of `n`."""
    if n <= 1:
        return 0
    if name in ("ppermute", "all_to_all"):
        return 1
    once = math.ceil(math.log2(n))
    return 2 * once if name in (*REDUCTIONS, "all_reduce") else once


def _all_times(use: CollectiveUse, time: Seconds) -> Seconds:
    """Return the time of all occurrences that totals include."""
    count = use.least if use.counted else 0
    return Seconds(time.bandwidth * count, time.latency * count)


def _saved(
    report: ReportData, totals: list[Seconds], opens: list[bool], machine: Hardware
) -> tuple[float, ...]:
    """Return the seconds that each collective would save without its redundant part.

    Latency is saved only if all collectives of a message are removed.
    """
    uses = report.collectives
    sizes = {axis.name: axis.size for axis in report.mesh}
    gone = {place for place, use in enumerate(uses) if use.redundant and not use.redundant.instead}
    gone |= {use.redundant.also for use in uses if use.redundant and use.redundant.also is not None}
    gone_messages = {
        place
        for launch in report.launches
        if gone.issuperset(launch.collectives)
        for place in launch.collectives
    }
    savings = []
    for place, use in enumerate(uses):
        wasted = use.redundant
        if wasted is None or not use.counted:
            savings.append(0.0)
            continue
        old_seconds = sum(
            totals[part].total
            if part in gone_messages or (part == place and wasted.instead)
            else totals[part].bandwidth
            for part in (place, wasted.also)
            if part is not None
        )
        new_seconds = sum(
            part.times * seconds(part, machine, sizes, opens[place]).total
            for part in wasted.instead
        )
        savings.append(max(0.0, old_seconds - new_seconds))
    return tuple(savings)


def _parts(steps: Iterable[ProgramPart], count: int = 1) -> Iterator[tuple[ProgramPart, int]]:
    """Yield the parts that totals include, without nested ones, and how often each runs."""
    for step in steps:
        if step.bodies:
            yield from _parts(step.bodies[step.counted], count * _trips(step))
        else:
            yield step, count


def _trips(step: ProgramPart) -> int:
    return 1 if step.length is None else step.length


def _rates(step: ProgramPart, machine: Hardware) -> tuple[float, float]:
    """Return the seconds of the arithmetic of a part, and of its memory traffic."""
    arithmetic = sum(flops / machine.peak(dtype) for dtype, flops in step.dots.items())
    moving = step.moved / machine.memory_bandwidth
    return arithmetic / machine.utilisation, moving / machine.utilisation


def _timed(step: ProgramPart, times: list[Seconds], machine: Hardware) -> ProgramPart:
    """Return the step, including nested ones, with seconds of one occurrence; nothing overlaps."""
    if step.collective is not None:
        return dataclasses.replace(step, seconds=times[step.collective].total)
    if not step.bodies:
        return dataclasses.replace(step, seconds=max(_rates(step, machine)))
    bodies = tuple(tuple(_timed(inner, times, machine) for inner in body) for body in step.bodies)
    once = sum(inner.seconds or 0.0 for inner in bodies[step.counted])
    return dataclasses.replace(step, bodies=bodies, seconds=_trips(step) * once)


def _by_axes(report: ReportData, totals: list[float]) -> tuple[tuple[tuple[str, ...], float], ...]:
    rows = {traffic.axes: 0.0 for traffic in report.traffic}
    for use, time in zip(report.collectives, totals, strict=True):
        rows[use.axes] = rows.get(use.axes, 0.0) + time
    return tuple(rows.items())


def _scaling(
    report: ReportData, opens: list[bool], axis: str, machine: Hardware, compute: float
) -> Scaling:
    mesh_sizes = {mesh_axis.name: mesh_axis.size for mesh_axis in report.mesh}
    points: list[ScalingPoint] = []
    alone = 0.0, 0.0
    for size in SIZES:
        sizes = {**mesh_sizes, axis: size}
        communication = 0.0
        for use, first in zip(report.collectives, opens, strict=True):
            grown = resized(use, axis, mesh_sizes[axis], size)
            communication += _all_times(grown, seconds(grown, machine, sizes, first)).total
        serial, overlapped = compute + communication, max(compute, communication)
        slower = 1 + _waiting(machine, sizes)
        alone = alone if points else (serial * slower, overlapped * slower)
        efficiency = _ratio(alone[0], serial * slower), _ratio(alone[1], overlapped * slower)
        points.append(ScalingPoint(size, communication, serial, overlapped, *efficiency))
    return Scaling(axis, tuple(points))


def _waiting(machine: Hardware, sizes: Mapping[str, int]) -> float:
    """Return the share of a step that devices wait for each other, on the nodes of a mesh."""
    nodes = math.prod(sizes.values()) / machine.node
    return machine.waiting * math.log2(nodes) if nodes > 1 else 0.0


def _ratio(least: float, time: float) -> float:
    return least / time if time else 1.0


def resized(use: CollectiveUse, axis: str, old: int, new: int) -> CollectiveUse:
    """Return the collective with another size of `axis` and the same work per device.

    Operands keep their size; for a gather the result does instead, as with sharded parameters.
    """
    if axis not in use.axes:
        return use
    group = max(1, use.group_size * new // old)
    size = use.bytes
    if use.name == "all_gather":
        size = -(-size * use.group_size // group)
    moves = use.bytes_sent or use.group_size == 1
    sent = sends(use.name, size, group) if moves else 0
    return dataclasses.replace(use, group_size=group, bytes_sent=sent)
