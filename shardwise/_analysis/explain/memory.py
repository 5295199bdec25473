"""Estimate the memory of one device: a walk over the operations that tracks live values.

A value is live from the operation that makes it to the last one that reads it; arguments are live
throughout, results from their creation to the end. Three optimisations of every compiler are taken
into account: a reshape costs nothing, elementwise results that are read once are never written to
memory (fusion), and neither are broadcasts and counters. A loop needs the whole of its stacked
arrays, and one iteration of the rest.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

from ..._program import (
    Atom,
    Body,
    Cond,
    Join,
    Leaf,
    Op,
    Scan,
    Split,
    Var,
    Where,
    While,
    primitives,
)
from ..._program.where import NOWHERE
from .data import Live, Memory
from .placing import KEEPS_LAYOUT, Layouts

FREE = primitives.names(lambda p: p.moves == "repeat" and p.acts == "moves") | {"iota"}
"""Operations that are recomputed wherever their result is read."""

FUSES = (
    KEEPS_LAYOUT
    | FREE
    | primitives.names(
        lambda p: p.acts == "moves" and not p.view and p.moves in ("reorder", "part", "pad")
    )
)
"""Operations that are computed where their result is read."""

READS_FUSED = FUSES | primitives.names(
    lambda p: p.view or p.acts in ("reduces", "scans", "windows")
)
"""Operations into which the computation of their operands is fused."""

SHOWN = 12
"""The number of values at the peak that are listed."""

POINTS = 400
"""The largest number of points on the timeline."""


def is_view(op: Op) -> bool:
    """Return whether the result of an operation is its operand in another shape."""
    return isinstance(op, Split | Join) or (isinstance(op, Leaf) and primitives.of(op.name).view)


def fused(body: Body) -> set[Var]:
    """Return the values that are never written to memory."""
    readers: dict[Var, list[Op]] = {}
    for op in body.ops:
        for atom in op.ins:
            if isinstance(atom, Var):
                readers.setdefault(atom, []).append(op)
    results = {id(atom) for atom in body.outs}
    values = set()
    for op in body.ops:
        if not isinstance(op, Leaf) or op.name not in FUSES:
            continue
        for var in op.outs:
            users = readers.get(var, [])
            fits = all(isinstance(user, Leaf) and user.name in READS_FUSED for user in users)
            if fits and id(var) not in results and (len(users) == 1 or op.name in FREE):
                values.add(var)
    return values


@dataclasses.dataclass(frozen=True)
class Peak:
    """The point of a list of operations with the most live bytes."""

    bytes: int = 0
    values: tuple[tuple[Var, int], ...] = ()
    where: Where = NOWHERE
    timeline: tuple[int, ...] = ()
    """The live bytes while each operation runs."""


class MemoryWalk:
    """A walk that tracks the live values of a program."""

    def __init__(self, layouts: Layouts):
        self.layouts = layouts
        self.makers: dict[Var, Op] = {}
        self.insides: dict[int, Peak] = {}

    def peak(self, body: Body, inputs: Iterable[Var], keep: Iterable[Atom]) -> Peak:
        """Return the peak of a list. `inputs` are live from the start, `keep` to the end."""
        start = dict.fromkeys(inputs, (0, len(body.ops) - 1))
        spans = start | self._spans(body, keep)
        sizes = {var: self.layouts.bytes(var) for var in spans}
        changes = [0] * (len(body.ops) + 1)
        for var, (first, last) in spans.items():
            changes[first] += sizes[var]
            changes[last + 1] -= sizes[var]
        insides = list(map(self._inside, body.ops))
        totals = itertools.accumulate(changes[:-1])
        timeline = tuple(
            total + inside.bytes for total, inside in zip(totals, insides, strict=True)
        )
        at_start = sum(sizes[var] for var in start)
        if max(timeline, default=0) <= at_start:
            return Peak(at_start, tuple((var, sizes[var]) for var in start), timeline=timeline)
        highest = timeline.index(max(timeline))
        live = ((var, sizes[var]) for var, (a, b) in spans.items() if a <= highest <= b)
        inside = insides[highest]
        line = inside.where if inside.bytes else body.ops[highest].where
        return Peak(max(timeline), (*live, *inside.values), line, timeline)

    def _spans(self, body: Body, keep: Iterable[Atom]) -> dict[Var, tuple[int, int]]:
        """Return the first and the last operation during which each computed value is live."""
        skip = fused(body)
        last_reads = _last_reads(body, keep)
        spans = {}
        for index, op in enumerate(body.ops):
            self.makers.update(dict.fromkeys(op.outs, op))
            for var in () if is_view(op) else op.outs:
                if var in last_reads and var not in skip:
                    spans[var] = index, min(last_reads[var], len(body.ops) - 1)
        return spans

    def _inside(self, op: Op) -> Peak:
        """Return what an operation holds inside, besides its operands and results."""
        if id(op) not in self.insides:
            self.insides[id(op)] = self._nested(op)
        return self.insides[id(op)]

    def _nested(self, op: Op) -> Peak:
        match op:
            case Scan():
                stacked = op.body.ins[op.consts + op.carry :]
                return self.peak(op.body, stacked, op.body.outs)
            case While():
                return self.peak(op.body, (), op.body.outs)
            case Cond():
                # The results of a branch are those of the operation, which are already counted.
                peaks = [self.peak(branch, (), ()) for branch in op.branches]
                return max(peaks, key=lambda peak: peak.bytes)
        return Peak()


def _last_reads(body: Body, keep: Iterable[Atom]) -> dict[Var, int]:
    """Return for each value the last operation that needs it, with views resolved."""
    root: dict[Var, Var] = {}
    last_reads: dict[Var, int] = {}
    for index, op in enumerate(body.ops):
        for atom in op.ins:
            if isinstance(atom, Var):
                last_reads[root.get(atom, atom)] = index
        source = op.ins[0] if is_view(op) else None
        if isinstance(source, Var):
            root.update(dict.fromkeys(op.outs, root.get(source, source)))
    for atom in keep:
        if isinstance(atom, Var):
            last_reads[root.get(atom, atom)] = len(body.ops)
    return last_reads


def memory_of(
    body: Body, layouts: Layouts, names: dict[Var, str], arguments: int, results: int
) -> Memory:
    """Return the memory of a program; `names` are its inputs with their names."""
    walk = MemoryWalk(layouts)
    peak = walk.peak(body, names, body.outs)
    ordered = sorted(peak.values, key=lambda pair: -pair[1])
    largest = ordered[:SHOWN]
    return Memory(
        arguments=arguments,
        results=results,
        peak=peak.bytes,
        peak_where=peak.where,
        live=tuple(_live(var, size, names, walk, layouts) for var, size in largest),
        rest=sum(size for _, size in ordered[SHOWN:]),
        timeline=_thinned(list(enumerate(peak.timeline))),
    )


def _live(var: Var, size: int, names: dict[Var, str], walk: MemoryWalk, layouts: Layouts) -> Live:
    op = walk.makers.get(var)
    kind = getattr(op, "name", type(op).__name__.lower()) if op else "loop input"
    line = op.where if op else NOWHERE
    return Live(names.get(var, kind), layouts.local_shape(var), var.kind, size, line)


def _thinned(points: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Reduce a timeline to at most `POINTS` points, the highest of each stretch."""
    width = -(-len(points) // POINTS) or 1
    stretches = (points[start : start + width] for start in range(0, len(points), width))
    return tuple(max(stretch, key=lambda point: point[1]) for stretch in stretches)
