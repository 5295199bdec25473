"""Export a report as a Chrome trace for Perfetto: one step of one device on a timeline.

Times are those of the cost model, without overlap. A loop is one slice with its first iteration
inside; the rest of the slice stands for the other iterations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..._base.errors import ShardwiseError
from . import units
from .data import ProgramPart
from .facts import ReportData

COMPUTE, LINKS = 1, 2
"""The two tracks: computation and communication."""


def trace(report: ReportData) -> dict[str, Any]:
    """Return the trace as JSON data for `ui.perfetto.dev` and `chrome://tracing`."""
    if report.cost is None:
        raise ShardwiseError(
            "this report has no times",
            where="trace.json",
            rule="A trace shows the times of the cost model, which needs a machine.",
            remedy='sw.explain(..., hardware="h200-node"), or report.on("h200-node").',
        )
    name = (
        f"{report.name}, one of {report.devices} devices, modelled on {report.cost.hardware.name}"
    )
    events = [
        _meta("process_name", 0, name),
        _meta("thread_name", COMPUTE, "compute"),
        _meta("thread_name", LINKS, "collectives"),
        *_slices(report, report.steps, 0.0),
    ]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"assumptions": "\n".join(report.cost.assumptions)},
        "traceEvents": events,
    }


def _meta(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": track, "args": {"name": name}}


def _slices(
    report: ReportData, steps: tuple[ProgramPart, ...], start: float
) -> Iterator[dict[str, Any]]:
    for step in steps:
        seconds = step.seconds or 0.0
        yield _slice(report, step, start, seconds)
        if step.bodies:
            yield from _slices(report, step.bodies[step.counted], start)
        start += seconds


def _slice(report: ReportData, step: ProgramPart, start: float, seconds: float) -> dict[str, Any]:
    name, args = _described(report, step)
    if step.where.file:
        args["where"] = f"{step.where.file}:{step.where.line}"
        args["source"] = step.where.text
    if step.module:
        args["module"] = step.module
    return {
        "ph": "X",
        "name": name,
        "cat": f"{step.kind},{step.direction}",
        "pid": 1,
        "tid": COMPUTE if step.collective is None else LINKS,
        "ts": 1e6 * start,
        "dur": 1e6 * seconds,
        "args": args,
    }


def _described(report: ReportData, step: ProgramPart) -> tuple[str, dict[str, Any]]:
    if step.collective is not None:
        use = report.collectives[step.collective]
        title = f"{use.name} over {units.axes(use.axes)}"
        return title, {
            "array": units.array(use.shape, use.dtype),
            "devices": use.group_size,
            "bytes sent": use.bytes_sent,
            "times": "unknown" if use.count is None else use.count,
        }
    name = {"compute": f"{step.operations} operations", "scan": f"scan × {step.length}"}
    return name.get(step.kind, step.kind), {"FLOP": step.flops, "bytes moved": step.moved}
