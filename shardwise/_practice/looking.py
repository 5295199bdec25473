"""Find the line of a mistake, and the values on each device there, by inspecting the solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .verdict import DeviceValues

VALUES, ROWS = 3, 8
"""The maximum number of values shown for a line, and of devices for each value."""


def seen_at(looked: Mapping[str, Any], line: int) -> tuple[int, str, tuple[DeviceValues, ...]]:
    """Return the line of the mistake, the mesh as text, and the devices' values at that line."""
    inspection = looked.get("inspection") or {}
    steps = [s for s in inspection.get("steps", ()) if s["kind"] != "result"]
    line = line or _blamed(looked, steps)
    mesh = inspection.get("mesh") or {}
    on = ", ".join(f"{name} = {size}" for name, size in mesh.items())
    here = [s for s in steps if s["where"]["line"] == line]
    if not here and steps:
        before = [s for s in steps if s["where"]["line"] <= line]
        here = before[-1:] if line else []
    return line, on, tuple(_device_values(s, mesh) for s in _chosen(here))


def fix_in(looked: Mapping[str, Any] | None) -> str:
    """Return the description of a verified fix, if one was found."""
    fixes = (finding["fix"] for finding in (looked or {}).get("findings", ()) if "fix" in finding)
    description = next((str(fix["description"]) for fix in fixes), "")
    return f"{description[:1].upper()}{description[1:]}." if description else ""


def seen_in_loop(
    facts: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[str, tuple[DeviceValues, ...]]:
    """Return the shapes that the model saw in each call, for a loop over shards."""
    on = ", ".join(f"{size} {name}" for name, size in sizes.items())
    rows = [(f"init, line {int(call['line'])}", str(call["shape"])) for call in facts["inits"]]
    rows += [(f"call, line {int(call['line'])}", str(call["shape"])) for call in facts["calls"]]
    more = [("", f"and {len(rows) - ROWS} more")] if len(rows) > ROWS else []
    return on, (
        DeviceValues("the shapes that the model saw", (*rows[:ROWS], *more)),
    ) if rows else ()


def _blamed(looked: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> int:
    """Return the line that `check` names, or that of the last collective, or of the last value."""
    lines = {s["where"]["line"] for s in steps}
    for finding in sorted(looked.get("findings", ()), key=lambda finding: not finding["certain"]):
        if finding["where"]["line"] in lines or finding["where"]["line"]:
            return int(finding["where"]["line"])
    collectives = [s for s in steps if s["kind"] == "collective" and not s["backward"]]
    inside = [s for s in steps if s["kind"] in ("value", "collective")]
    last = (collectives or inside or [None])[-1]
    return int(last["where"]["line"]) if last else 0


def _chosen(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the values of a line to show: named ones, and those around a collective."""
    keep = [
        s
        for i, s in enumerate(steps)
        if s["kind"] in ("collective", "input")
        or s["name"]
        or (i + 1 < len(steps) and steps[i + 1]["kind"] == "collective")
    ]
    return (keep or list(steps[-1:]))[-VALUES:]


def _device_values(step: Mapping[str, Any], mesh: Mapping[str, int]) -> DeviceValues:
    name = step["name"] if step["name"] != "return" else "what is returned"
    what = f"{name} ({step['operation']})" if name else step["operation"]
    rows = []
    for group in step["held"][:ROWS]:
        devices = group["devices"]
        if not step["differs_over"]:
            place = "every device"
        elif len(devices) == 1:
            place = _words(devices[0])
        else:
            place = f"{_words(devices[0])} and {len(devices) - 1} more"
        rows.append((place, _numbers(group)))
    if len(step["held"]) > ROWS:
        rows.append(("", f"and {len(step['held']) - ROWS} more"))
    return DeviceValues(what, tuple(rows))


def _words(device: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {at}" for name, at in device.items())


def _numbers(group: Mapping[str, Any]) -> str:
    if "values" in group:
        text = _plain(group["values"])
    else:
        first = ", ".join(_plain(number) for number in group["first"][:4])
        text = f"from {_plain(group['min'])} to {_plain(group['max'])}: {first}, ..."
    return text if len(text) <= 64 else text[:60] + " ..."


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
