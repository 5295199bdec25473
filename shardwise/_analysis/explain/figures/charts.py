"""Draw charts: traffic by mesh axis, memory of one device, efficiency as an axis grows.

Each is as wide as a phone or a column of a paper, so that its text is readable in both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import units
from ..data import Memory, Scaling, ScalingPoint, Traffic
from ..facts import ReportData
from .draw import Drawing, axis_color, axis_colors

WIDTH = 360


def traffic(report: ReportData) -> Drawing:
    """Draw what one device sends along each axis: bars of time if known, else of bytes."""
    rows = report.traffic
    title = f"Sent by one device, by mesh axis: {units.size(report.bytes_sent)}"
    if report.cost is not None:
        title = f"Communication by mesh axis: {units.duration(report.cost.communication)}"
    words = "; ".join(f"{units.axes(row.axes)}: {_amount(row)}" for row in rows)
    timed = bool(rows) and report.cost is not None
    top = 16 if timed else 0
    drawing = Drawing(WIDTH, 42 * max(1, len(rows)) + 6 + top, title, words)
    if timed:
        drawing.text(WIDTH - 130, 11, "time, as the bars", anchor="end", size=11)
        drawing.text(WIDTH, 11, "bytes sent", "soft", anchor="end", size=11)
    if not rows:
        drawing.text(0, 20, "The devices send each other nothing.", "soft")
    for number, row in enumerate(rows):
        _axis(drawing, report, row, 42 * number + top)
    return drawing


def _amount(traffic: Traffic) -> str:
    sent = f"{units.size(traffic.bytes)}, {units.share(traffic.share)}"
    if traffic.seconds is None or traffic.time_share is None:
        return sent
    time = f"{units.duration(traffic.seconds)}, {units.share(traffic.time_share)} of the time"
    return f"{time}; {sent} of the bytes"


def _axis(drawing: Drawing, report: ReportData, traffic: Traffic, y: float) -> None:
    name = units.axes(traffic.axes)
    bytes_, share = units.size(traffic.bytes), units.share(traffic.share)
    columns = [(WIDTH - 64, bytes_, "ink", traffic.bytes), (WIDTH, share, "soft", traffic.share)]
    room = WIDTH - 150
    if traffic.seconds is not None:
        columns = [
            (WIDTH - 178, units.duration(traffic.seconds), "ink", traffic.seconds),
            (WIDTH - 130, units.share(traffic.part), "ink", traffic.part),
            (WIDTH - 50, bytes_, "soft", traffic.bytes),
            (WIDTH, share, "soft", traffic.share),
        ]
        room = WIDTH - 258
    drawing.text(0, y + 16, name, room=room, font_weight=600)
    for x, words, color, value in columns:
        drawing.text(x, y + 16, words, color, anchor="end", value=value)
    drawing.rect(0, y + 23, WIDTH, 10, "fill")
    length = max(2.0, WIDTH * traffic.part) if traffic.bytes else 0.0
    drawing.bar(
        0, y + 23, length, 10, axis_colors(report, traffic.axes), f"{name}: {_amount(traffic)}"
    )


# --- memory


def memory(report: ReportData) -> Drawing:
    """Draw the memory of one device: arguments, results, the peak and its parts, and a timeline."""
    usage = report.memory
    words = (
        f"Arguments {units.size(usage.arguments)}, results {units.size(usage.results)}, "
        f"peak {units.size(usage.peak)}"
    )
    height = 272 if len(usage.timeline) > 1 else 152
    drawing = Drawing(WIDTH, height, "Memory of one device", words)
    largest = max(usage.peak, usage.arguments, usage.results, 1)
    for y, name, bytes_, color in (
        (0, "arguments", usage.arguments, "held"),
        (42, "results", usage.results, "made"),
    ):
        _bar_head(drawing, y, name, bytes_)
        drawing.rect(0, y + 23, WIDTH * bytes_ / largest, 10, color)
    _bar_head(drawing, 84, "peak of live values", usage.peak)
    _segments(drawing, 107, report, WIDTH / largest)
    _legend(drawing, 145)
    if len(usage.timeline) > 1:
        _timeline(drawing, 162, usage)
    return drawing


def _bar_head(drawing: Drawing, y: float, name: str, bytes_: int) -> None:
    drawing.text(0, y + 16, name, font_weight=600)
    drawing.text(WIDTH, y + 16, units.size(bytes_), anchor="end", value=bytes_)
    drawing.rect(0, y + 23, WIDTH, 10, "fill")


def _segments(drawing: Drawing, y: float, report: ReportData, scale: float) -> None:
    """Draw the values live at the peak, the arguments first."""
    paths = {value.path for value in report.arguments}
    live = sorted(report.memory.live, key=lambda value: value.what not in paths)
    x = 0.0
    for value in live:
        width = value.bytes * scale
        color = "held" if value.what in paths else "made"
        hint = f"{value.what} {units.array(value.shape, value.dtype)}: {units.size(value.bytes)}"
        drawing.rect(x, y, max(width - 0.8, 0.4), 16, color, hint=hint)
        x += width
    others = report.memory.rest
    hint = f"all other values: {units.size(others)}"
    drawing.rect(x, y, min(others * scale, WIDTH - x), 16, "rest", hint=hint)


def _legend(drawing: Drawing, y: float) -> None:
    x = 0.0
    for color, words in (("held", "arguments"), ("made", "computed"), ("rest", "other values")):
        drawing.rect(x, y - 9, 10, 10, color)
        drawing.text(x + 15, y, words, "soft", size=11)
        x += 6.4 * len(words) + 36


def _timeline(drawing: Drawing, y: float, memory: Memory) -> None:
    """Draw the live bytes from the first operation to the last."""
    high, bottom = 78, y + 92
    drawing.text(0, y + 10, "live values along the program", "soft", size=11)
    drawing.path(f"M0,{bottom + 0.5}H{WIDTH}", "line")
    points = memory.timeline
    if not memory.peak:
        return
    step = WIDTH / max(1, len(points))
    data = f"M0,{bottom}"
    for number, (_, bytes_) in enumerate(points):
        data += f"V{bottom - (high - 12) * bytes_ / memory.peak:.1f}H{(number + 1) * step:.1f}"
    drawing.path(f"{data}V{bottom}Z", "made", stroke="none", fill="currentColor")
    top = max(range(len(points)), key=lambda number: points[number][1])
    x = (top + 0.5) * step
    drawing.path(f"M{x:.1f},{bottom - high + 12}v{high - 12}", "ink", stroke_dasharray="2 2")
    side = "end" if x > WIDTH / 2 else "start"
    drawing.text(x + (-5 if side == "end" else 5), bottom - high + 10, "peak", size=10, anchor=side)
    drawing.text(0, bottom + 14, "first operation", "soft", size=10)
    drawing.text(WIDTH, bottom + 14, "last", "soft", size=10, anchor="end")


# --- scaling

PLOT = (40, 12, WIDTH - 10, 190)
"""Left, top, right and bottom of the plot."""


def scaling(report: ReportData) -> Drawing:
    """Draw the parallel efficiency as each axis grows with the same work per device."""
    curves = report.cost.scaling if report.cost else ()
    title = "Efficiency as a mesh axis grows"
    drawing = Drawing(WIDTH, 244 + 18 * len(curves), title, _curves_in_words(curves))
    if not curves:
        words = "The mesh has no axis that could grow."
        drawing.text(WIDTH / 2, 110, words, "soft", anchor="middle")
        return drawing
    left, _, right, bottom = PLOT
    sizes = [point.size for point in curves[0].points]
    for percent in (0, 25, 50, 75, 100):
        y = _y(percent / 100)
        drawing.path(f"M{left},{y}H{right}", "line")
        words = f"{percent} %" if percent == 100 else str(percent)
        drawing.text(left - 6, y + 4, words, "soft", size=10, anchor="end")
    for size in sizes[:: 2 if len(sizes) > 6 else 1]:
        drawing.text(_x(size, sizes), bottom + 14, str(size), "soft", size=10, anchor="middle")
    words = "size of the axis"
    drawing.text((left + right) / 2, bottom + 29, words, "soft", size=11, anchor="middle")
    for curve in curves:
        _curve(drawing, report, curve, sizes)
    for number, curve in enumerate(curves):
        y = bottom + 48 + 18 * number
        drawing.rect(left, y - 9, 16, 10, axis_color(report.mesh, curve.axis))
        drawing.text(left + 22, y, curve.axis, size=11, room=right - left - 22)
    words = "solid: nothing overlaps; dashed: overlapped; dot: this mesh"
    drawing.text(left, bottom + 48 + 18 * len(curves), words, "soft", size=10)
    return drawing


def _x(size: int, sizes: Sequence[int]) -> float:
    left, _, right, _ = PLOT
    return left + 4 + (right - left - 12) * math.log2(size) / max(1.0, math.log2(sizes[-1]))


def _y(efficiency: float) -> float:
    _, top, _, bottom = PLOT
    return bottom - (bottom - top) * efficiency


def _curve(drawing: Drawing, report: ReportData, curve: Scaling, sizes: Sequence[int]) -> None:
    """Draw a band from no overlap to full overlap, and a dot at the size of the mesh."""
    color = axis_color(report.mesh, curve.axis)
    low = [(_x(p.size, sizes), _y(p.efficiency)) for p in curve.points]
    high = [(_x(p.size, sizes), _y(p.efficiency_overlapped)) for p in curve.points]
    area = f"{_line(low)}L{_line(high[::-1])[1:]}Z"
    drawing.path(area, color, fill="currentColor", stroke="none", opacity=0.18)
    drawing.path(_line(low), color, stroke_width=1.8)
    drawing.path(_line(high), color, stroke_width=1.4, stroke_dasharray="4 3")
    mesh_size = next(axis.size for axis in report.mesh if axis.name == curve.axis)
    for point, (x, y) in zip(curve.points, low, strict=True):
        drawing.circle(x, y, 4 if point.size == mesh_size else 2, color, _hint(curve.axis, point))


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _hint(axis: str, point: ScalingPoint) -> str:
    shares = f"{units.share(point.efficiency)} to {units.share(point.efficiency_overlapped)}"
    return f"{axis} {point.size}: {shares}"


def _curves_in_words(curves: Sequence[Scaling]) -> str:
    return "; ".join(_hint(curve.axis, curve.points[-1]) for curve in curves if curve.points)
