"""Inspect a wrong solution: the line of the mistake, and the values of each device there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from ..._analysis.fixes import check
from ..._analysis.inspect import Inspection, inspect
from ..._analysis.inspect.record import StepRecorder
from ..._mesh import mesh as make_mesh
from . import hooks

FINDINGS, STEPS = 6, 400
"""How many of each are returned, at most."""


def look(
    function: Callable[..., Any], job: Mapping[str, Any], on: hooks.Watching
) -> dict[str, Any]:
    """Return the results of `check` and `inspect` for a solution; either may fail."""
    wide, sizes = on.wide, dict(job["mesh"])
    traced, joined = hooks.divided(job["args"])

    def program(*args: Any, mesh: Any) -> Any:
        if job.get("pass_mesh"):
            return function(*joined(args), mesh=mesh)
        # The solution creates a mesh of one device, which gets the size of this mesh.
        before, wide.count = wide.count, mesh.size
        try:
            return function(*joined(args))
        finally:
            wide.count = before

    report: dict[str, Any] = {"findings": [], "inspection": None}
    with contextlib.suppress(Exception):
        verdict = check(program, *traced, mesh={name: [size] for name, size in sizes.items()})
        every = (*verdict.findings, *verdict.silenced)
        report["findings"] = [finding.to_dict() for finding in every[:FINDINGS]]
    try:
        inspection = inspect(program, *traced, mesh=make_mesh(sizes))
    except Exception:
        inspection = _by_parts(program, traced, sizes, on)
    if inspection is not None:
        data = inspection.to_dict()
        data["steps"] = data["steps"][:STEPS]
        report["inspection"] = data
    return report


def _by_parts(
    program: Callable[..., Any], args: list[Any], sizes: Mapping[str, int], on: Any
) -> Inspection | None:
    """Check the `shard_map`s of a solution one by one, if it cannot be traced as a whole."""
    hooks.watch_shard_map(on)
    try:
        program(*args, mesh=make_mesh(dict(sizes)))
    except Exception:
        if not on.observations.programs:
            return None
    steps = []
    for traced, values in on.observations.programs[:4]:
        try:
            steps += StepRecorder(traced).record(values)
        except Exception:
            continue
    return Inspection("the solution", dict(sizes), tuple(steps)) if steps else None
