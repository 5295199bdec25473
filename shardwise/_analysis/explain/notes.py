"""List what the numbers of a report do not cover, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..._mesh import Axis, Placement
from ..._program import Body, Join, Leaf, Op, Split, Var, is_sharded, walk
from . import units
from .data import CollectiveUse
from .memory import FREE, is_view
from .placing import KEEPS_LAYOUT, Layouts


def left_to_compiler(body: Body, layouts: Layouts, axes: Sequence[Axis]) -> tuple[str, ...]:
    """Return what only the compiler decides, each item once, in program order."""
    ops = list(walk(body.ops))
    items = [*_no_body(body), *_left_to_compiler(ops, axes), *_moved(ops, layouts)]
    return tuple(dict.fromkeys([*items, *_outside(ops, layouts)]))


def notes_of(uses: Sequence[CollectiveUse], unread: str = "") -> tuple[str, ...]:
    """Return the limits of the figures; `unread` says why the symbolic analysis failed."""
    notes = list(_counts(uses))
    if unread and any(use.by == "program" for use in uses):
        notes.append(
            f"what the values mean is not known ({unread}), so nothing is said of who holds what "
            "between collectives, or of what is redundant."
        )
    return tuple(dict.fromkeys(notes))


def _no_body(body: Body) -> Iterator[str]:
    if not is_sharded(body) and not body.outs:
        yield "the function returns no arrays, so what it computes is left out."
    elif not is_sharded(body):
        yield (
            "there is no shard_map in the program, so the compiler alone decides who holds and "
            "sends what; it was not compiled."
        )


def _left_to_compiler(ops: list[Op], axes: Sequence[Axis]) -> Iterator[str]:
    scoped = [op for op in ops if op.scope]
    for axis in axes:
        outside = next((op for op in scoped if axis not in op.scope), None)
        if outside is not None and axis.size > 1:
            yield (
                f"axis {axis.name!r} is left to the compiler in the shard_map around "
                f"{outside.where}; what it sends along that axis is not counted."
            )


def _moved(ops: list[Op], layouts: Layouts) -> Iterator[str]:
    """Yield arrays that one `shard_map` leaves in another layout than the next one needs."""
    for op in ops:
        if isinstance(op, Split):
            pairs = [(op.ins[0], op.placement)]
        elif op.scope and not isinstance(op, Join):
            pairs = [(atom, ()) for atom in op.ins]
        else:
            continue
        for atom, needed in pairs:
            layout = layouts.known.get(atom) if isinstance(atom, Var) else None
            if layout is not None and not _is_part(layout, needed):
                yield (
                    f"{op.where}: an array is held as {_spec(layout)} and needed as "
                    f"{_spec(needed)}; the compiler moves it, and what that sends is not counted."
                )


def _outside(ops: list[Op], layouts: Layouts) -> Iterator[str]:
    """Yield the first operation outside `shard_map` that needs more than a part of an array."""
    for op in ops:
        if op.scope or not isinstance(op, Leaf) or op.name in KEEPS_LAYOUT | FREE or is_view(op):
            continue
        if any(axis.size > 1 for atom in op.ins for axis in layouts.axes(atom)):
            yield (
                f"{op.where}: {op.name} of an array that is split, outside shard_map; what the "
                "compiler sends for that, and for what follows, is not counted."
            )
            return


def _is_part(present: Placement, needed_placement: Placement) -> bool:
    """Return whether what a device needs of an array is part of what it holds."""
    rows = [_real(row) for row in present]
    needed = [_real(row) for row in needed_placement] or [()] * len(rows)
    return all(need[: len(row)] == row for row, need in zip(rows, needed, strict=True))


def _real(row: tuple[Axis, ...]) -> tuple[Axis, ...]:
    return tuple(axis for axis in row if axis.size > 1)


def _spec(placement: Placement) -> str:
    return units.spec([[axis.name for axis in row] for row in placement])


def _counts(uses: Sequence[CollectiveUse]) -> Iterator[str]:
    if any(use.count is None for use in uses):
        yield "a while decides how often its collectives happen; the totals take them once."
    if any(not use.counted for use in uses):
        yield "of the branches of a cond the totals count the one that sends most."
