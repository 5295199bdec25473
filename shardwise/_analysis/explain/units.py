"""Format quantities: `1.5 GB`, `3.2 TFLOP`, `12 ms`, and arrays as `f32[8, 16]`."""

from __future__ import annotations

from collections.abc import Sequence

from ..._base.numbers import short_dtype
from .data import MeshAxis

_LARGE = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")


def large(value: float, unit: str) -> str:
    """Format a count with a decimal prefix and at most three digits: `1.05 MB`."""
    step = 0
    while abs(value) >= 999.5 and step < len(_LARGE) - 1:
        value, step = value / 1000, step + 1
    number = f"{value:.3g}" if step or value != int(value) else f"{int(value)}"
    return f"{number} {_LARGE[step]}{unit}".strip()


def size(value: float) -> str:
    """Format bytes."""
    return large(value, "B")


def duration(value: float) -> str:
    """Format seconds."""
    if value <= 0:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= 0.9995 * scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def between(low: float, high: float) -> str:
    """Format a range of seconds; a single figure if both ends look the same."""
    ends = dict.fromkeys((duration(low), duration(high)))
    return " to ".join(ends)


def share(value: float) -> str:
    """Format a share in percent; a share above 0 is never shown as 0."""
    return "< 1 %" if 0 < value < 0.005 else f"{100 * value:.0f} %"


def some(size: int, most: int) -> list[int | None]:
    """Return the coordinates to draw: all, or the first ones, None and the last."""
    if size <= most:
        return list(range(size))
    return [*range(most - 2), None, size - 1]


def array(shape: Sequence[int], dtype: str) -> str:
    """Format an array type: `f32[8, 16]`."""
    return f"{short_dtype(dtype)}[{', '.join(map(str, shape))}]"


def arrays(types: Sequence[tuple[Sequence[int], str]]) -> str:
    """Format several array types: `f32[8, 16] × 3`, or `3 arrays` if they differ."""
    different = {array(*kind) for kind in types}
    if len(different) > 1:
        return f"{len(types)} arrays"
    return different.pop() + (f" × {len(types)}" if len(types) > 1 else "")


def spec(rows: Sequence[Sequence[str]]) -> str:
    """Format a spec as in source code: `P('data', None)`."""
    rows = list(rows)
    while rows and not rows[-1]:
        rows.pop()
    entries = [
        "None" if not row else repr(row[0]) if len(row) == 1 else str(tuple(row)) for row in rows
    ]
    return f"P({', '.join(entries)})"


def axes(names: Sequence[str]) -> str:
    """Format the axes of a collective: `data`, or `data, model`."""
    return ", ".join(names)


def mesh(axes: Sequence[MeshAxis]) -> str:
    """Format a mesh: `{data: 4, model: 2}`."""
    return "{" + ", ".join(f"{axis.name}: {axis.size}" for axis in axes) + "}"
