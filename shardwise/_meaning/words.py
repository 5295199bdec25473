"""Descriptions of the part of the whole that a device has, for messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._mesh import Axis
from .keep import Names
from .value import Dim, Value, axes_in

KINDS = {"sum": "a sum", "max": "a maximum", "min": "a minimum"}


def holding(v: Value, names: Names) -> str:
    """Return a description such as `its rows of x along data`, `a share of a sum over model`."""
    if v.zero:
        return "zeros"
    name = _name(v, names)
    of = f" of {name}" if name else ""
    local = f"a value of its own along {_axes(v.hidden)}" if v.hidden else ""
    owed = ", and ".join(_share(kind, v) for kind in KINDS if _owing(v, kind))
    if owed:
        rest = " and ".join(filter(None, [_part(v), local]))
        return f"{owed}, for {rest}" if rest else owed
    part = _part(v, of)
    return ", ".join(filter(None, [part, local])) or f"the whole{of}"


def _owing(v: Value, kind: str) -> list[Axis]:
    return sorted(axis for axis, owed_kind in v.owed if owed_kind == kind)


def _share(kind: str, v: Value) -> str:
    return f"a share of {KINDS[kind]} over {_axes(_owing(v, kind))}"


def _name(v: Value, names: Names) -> str:
    name = names.get(v.term.params, "") if v.term.op == "symbol" else ""
    if not name or v.coef == 1:
        return name
    return f"{v.coef} × {name}" if v.coef > 0 else ""


def _part(v: Value, of: str = "") -> str:
    """Return the phrase for the dimensions that are cut."""
    places = [d for d, dim in enumerate(v.dims) if axes_in([dim])]
    if not places:
        return ""
    axes = _axes(axis for d in places for axis in _order(v.dims[d]))
    return f"{_which(places, len(v.dims))}{of} along {axes}"


def _which(places: Sequence[int], rank: int) -> str:
    if rank == 1:
        return "its part"
    if rank == 2:
        return "its block" if len(places) == 2 else ("its rows", "its columns")[places[0]]
    numbers = " and ".join(map(str, places))
    return f"its part of dimension{'s' * (len(places) > 1)} {numbers}"


def _order(dim: Dim) -> list[Axis]:
    return [axis for _, axes in dim for axis in axes]


def _axes(axes: Iterable[Axis]) -> str:
    names = list(dict.fromkeys(axis.name for axis in axes))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
