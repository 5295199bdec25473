"""Deadlocks: detected while the program runs, reported at its end.

The decision of a `cond` or `while` around a collective must be equal along the axes of that
collective. Where it may differ, the lowered program compares the decisions of all coordinates. The
first divergence is carried to the end as two arrays: its place (`site`, counted from 1) and the
branch that each device of the mesh takes there (`branches`, -1 where irrelevant).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..._base.errors import DeadlockError, UnsupportedError
from ..._mesh import Axis
from ..._program import Collective, Cond, Op, While, collectives_in, walk
from .value import StackedValue


class Divergence(NamedTuple):
    """The first divergence so far; `site` is 0 if there is none."""

    site: Any
    branches: Any


def sites(ops: Sequence[Op]) -> list[Op]:
    """Return the operations in which devices may diverge before a collective."""
    return [op for op in walk(list(ops)) if decision_axes(op) & op.meets & set(op.scope)]


def decision_axes(op: Op) -> frozenset[Axis]:
    """Return the axes along which the decision of a `cond` or `while` may differ."""
    if isinstance(op, Cond):
        return op.ins[0].axes
    if isinstance(op, While):
        return op.cond.outs[0].axes
    return frozenset()


class DivergenceWatch:
    """The sites of a program, numbered, and the size of a record for all devices."""

    def __init__(self, ops: Sequence[Op]):
        self.sites = sites(ops)
        self.number = {id(op): i + 1 for i, op in enumerate(self.sites)}
        self.size = max((_count(op.scope) for op in self.sites), default=0)

    def no_divergence(self) -> Divergence:
        """Return a record without divergence."""
        return Divergence(np.int32(0), np.full(self.size, -1, np.int32))

    def concerns(self, ops: Sequence[Op]) -> bool:
        """Return whether devices may diverge in any of these operations."""
        return any(id(op) in self.number for op in walk(list(ops)))

    def compare(self, op: Op, decision: StackedValue, coords: dict[Axis, Any]) -> Divergence:
        """Return a divergence if the decision differs along any of its axes."""
        branches = decision.array.astype(jnp.int32)
        differs = jnp.any(branches != decision.first().astype(jnp.int32))
        everywhere = decision.spread([axis for axis in op.scope if axis in decision.dims])
        full = _place(everywhere.astype(jnp.int32), op.scope, decision, coords)
        padded = jnp.full(self.size, -1, jnp.int32).at[: full.size].set(full.reshape(-1))
        site = jnp.where(differs, self.number[id(op)], 0).astype(jnp.int32)
        return Divergence(site, padded)


def _place(
    branches: Any, scope: Sequence[Axis], decision: StackedValue, coords: dict[Axis, Any]
) -> Any:
    """Return the branches on the whole mesh: -1 at coordinates of other iterations of a loop."""
    shape = [axis.size if axis in decision.dims else 1 for axis in scope]
    branches = branches.reshape(shape)
    for dim, axis in enumerate(scope):
        if axis in coords:
            line_shape = [-1 if d == dim else 1 for d in range(len(scope))]
            line = jnp.arange(axis.size, dtype=jnp.int32).reshape(line_shape)
            branches = jnp.where(line == coords[axis], branches, -1)
    return jnp.broadcast_to(branches, [axis.size for axis in scope])


def first_of(divergences: Sequence[Divergence]) -> Divergence:
    """Return the earliest of several divergences."""
    out = divergences[0]
    for later in divergences[1:]:
        is_first = out.site == 0
        site = jnp.where(is_first, later.site, out.site)
        out = Divergence(site, jnp.where(is_first, later.branches, out.branches))
    return out


def first_in(stack: Divergence) -> Divergence:
    """Return the earliest divergence along a leading dimension."""
    index = jnp.argmax(stack.site > 0)
    return Divergence(stack.site[index], stack.branches[index])


# --- messages -------------------------------------------------------------------------


def explain_divergence(
    all_sites: Sequence[Op], site: int, branches: np.ndarray
) -> DeadlockError | UnsupportedError:
    """Return the exception for a divergence at `site`."""
    op = all_sites[site - 1]
    shape = tuple(axis.size for axis in op.scope)
    grid = np.asarray(branches)[: _count(op.scope)].reshape(shape)
    groups = {int(branch): grid == branch for branch in np.unique(grid) if branch >= 0}
    if _agrees_in_groups(op, grid):
        return UnsupportedError(
            f"devices of different axis_index_groups take different branches of this {_kind(op)}",
            where=str(op.where),
            rule="The simulator runs a collective for all groups together.",
            remedy="take the decision for all groups, or move the collective out of it.",
        )
    arrivals = {branch: _waits(op, branch) for branch in groups}
    lines = [
        _line(op.scope, mask, arrivals[branch], _path(op, branch))
        for branch, mask in groups.items()
    ]
    first = next(branch for branch in groups if arrivals[branch])
    absent = ~groups[first] & (grid >= 0)
    head = (
        f"{devices(op.scope, groups[first])} at {arrivals[first]}, "
        f"but {devices(op.scope, absent, verb=False)} never {_reach(absent)} it"
    )
    return DeadlockError(
        head + ".\n  " + "\n  ".join(lines),
        rule=f"Every device along the axis of a collective has to reach it; the {_kind(op)} at "
        f"{op.where} sends them different ways.",
        remedy=_remedy(op, arrivals[first]),
    )


def _remedy(op: Op, reached: Collective | None) -> str:
    if not isinstance(op, While) or reached is None:
        return (
            "take the collective out of the branch (compute it on every device and select with "
            "jnp.where), or make the decision the same everywhere (lax.psum or lax.pmax of the "
            "predicate)."
        )
    names = [axis.name for axis in reached.axes]
    axes = repr(names[0] if len(names) == 1 else tuple(names))
    return (
        f"run as many iterations everywhere: return lax.pmax(predicate, {axes}) from the condition "
        f"of a while_loop, or give a fori_loop lax.pmax(upper, {axes}); then all devices continue "
        "until the last one is done."
    )


def _reach(mask: np.ndarray) -> str:
    return "reaches" if mask.sum() == 1 else "reach"


def _kind(op: Op) -> str:
    return "while loop" if isinstance(op, While) else "cond"


def _waits(op: Op, branch: int) -> Collective | None:
    """Return the first collective on a branch."""
    if isinstance(op, While):
        bodies = [op.body, op.cond] if branch else []
    else:
        assert isinstance(op, Cond)
        bodies = [op.branches[min(max(branch, 0), len(op.branches) - 1)]]
    return next((c for body in bodies for c in collectives_in(body.ops)), None)


def _path(op: Op, branch: int) -> str:
    if isinstance(op, While):
        return "another iteration of the loop" if branch else "out of the loop"
    return f"branch {branch}"


def _line(scope: Sequence[Axis], mask: np.ndarray, waits: Collective | None, path: str) -> str:
    target = f"to {waits}" if waits else "no collective"
    return f"{devices(scope, mask, verb=False)}: {path}, {target}"


def devices(scope: Sequence[Axis], mask: np.ndarray, verb: bool = True) -> str:
    """Format coordinates: `device {data: 0} is`, `devices {data: 1..3} are`."""
    coordinates = np.argwhere(mask)
    parts = []
    for dim, axis in enumerate(scope):
        values = sorted({int(row[dim]) for row in coordinates})
        parts.append(f"{axis.name}: {_ranges(values)}")
    single = len(coordinates) == 1
    box = math.prod(len({int(row[d]) for row in coordinates}) for d in range(len(scope)))
    text = "{" + ", ".join(parts) + "}"
    if box != len(coordinates):
        text = ", ".join(
            "{" + ", ".join(f"{a.name}: {int(i)}" for a, i in zip(scope, row, strict=True)) + "}"
            for row in coordinates[:8]
        ) + (f" and {len(coordinates) - 8} more" if len(coordinates) > 8 else "")
    return f"device{'' if single else 's'} {text}" + (" is" if single else " are") * verb


def _ranges(values: list[int]) -> str:
    out = []
    start = previous = values[0]
    for value in [*values[1:], None]:
        if value is not None and value == previous + 1:
            previous = value
            continue
        out.append(f"{start}" if start == previous else f"{start}..{previous}")
        if value is not None:
            start = previous = value
    return ", ".join(out)


def _agrees_in_groups(op: Op, grid: np.ndarray) -> bool:
    """Return whether the branches differ only between the groups of the collectives inside."""
    collectives = [c for body in op.bodies for c in collectives_in(body.ops)]
    if not all(c.groups for c in collectives):
        return False
    for c in collectives:
        dims = [op.scope.index(axis) for axis in c.axes]
        lines = np.moveaxis(grid, dims, range(len(dims))).reshape(_count(c.axes), -1)
        for group in c.groups or ():
            if (lines[list(group)] != lines[group[0]]).any():
                return False
    return True


def _count(axes: Sequence[Axis]) -> int:
    return math.prod(axis.size for axis in axes)
