"""How values outside `shard_map` are laid out: arguments, results and what is between two bodies.

Inside a body shapes are those of one device. Outside they are whole, and the compiler decides who
holds what. Its decision starts from the specs, and so does this: an array that a `shard_map` takes
apart is held that way, one that it puts together too, and what is computed from them element by
element keeps the layout. Everything else counts as held by every device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..._mesh import Axis, Placement
from ..._program import Atom, Body, Join, Leaf, Op, Split, Var, pairs, primitives

KEEPS_LAYOUT = primitives.names(lambda p: p.pointwise or p.identity)
"""Leaves whose result is laid out as their operands are."""


class Layouts:
    """The layout of each value outside `shard_map`."""

    def __init__(self, body: Body, given: dict[Var, Placement]):
        self.known: dict[Var, Placement] = dict(given)
        self.changed = True
        while self.changed:
            self.changed = False
            self._forth(body)
            self._back(body)

    def of(self, atom: Atom) -> Placement:
        """For each dimension the axes it is split over; none where nothing is known."""
        if not isinstance(atom, Var):
            return ()
        return self.known.get(atom, ((),) * len(atom.shape))

    def axes(self, atom: Atom) -> tuple[Axis, ...]:
        """The axes a value outside is split over."""
        return tuple(axis for row in self.of(atom) for axis in row)

    def local_shape(self, var: Var) -> tuple[int, ...]:
        """The part of one device."""
        parts = [math.prod(axis.size for axis in row) for row in self.of(var)]
        return tuple(-(-size // n) for size, n in zip(var.shape, parts, strict=True))

    def bytes(self, var: Var) -> int:
        """Of the part of one device."""
        parts = math.prod(axis.size for axis in self.axes(var))
        return -(-var.bytes // parts)

    def _put(self, atom: Atom, layout: Placement | None) -> None:
        if isinstance(atom, Var) and atom not in self.known and layout and any(layout):
            self.known[atom] = layout
            self.changed = True

    def _forth(self, body: Body) -> None:
        for op in body.ops:
            if isinstance(op, Join):
                self._put(op.outs[0], op.placement)
            elif isinstance(op, Leaf) and not op.scope and op.name in KEEPS_LAYOUT:
                for out in op.outs:
                    self._put(out, next(self._alike(op, out), None))
            for inner, same in self._nested(op):
                self._share(same)
                self._forth(inner)
                self._share(same)

    def _back(self, body: Body) -> None:
        for op in reversed(body.ops):
            if isinstance(op, Split):
                self._put(op.ins[0], self._within(op.placement, op.outs[0]))
            elif isinstance(op, Leaf) and not op.scope and op.name in KEEPS_LAYOUT:
                for atom in op.ins:
                    if isinstance(atom, Var) and atom.shape == op.outs[0].shape:
                        self._put(atom, self.known.get(op.outs[0]))
            for inner, same in self._nested(op):
                self._share(same)
                self._back(inner)
                self._share(same)

    def _within(self, placement: Placement, part: Var) -> Placement:
        """A layout whose parts another `shard_map` inside takes apart once more."""
        rows = zip(placement, self.of(part), strict=True)
        return tuple(outer + inner for outer, inner in rows)

    def _alike(self, op: Op, out: Var) -> Iterator[Placement]:
        """Layouts of the operands that have the shape of a result."""
        for atom in op.ins:
            if isinstance(atom, Var) and atom.shape == out.shape and atom in self.known:
                yield self.known[atom]

    def _share(self, same: list[tuple[Atom, Atom, int]]) -> None:
        """A value outside and inside a loop is one; a stacked one has a dimension in front."""
        for outer, inner, stacked in same:
            if isinstance(outer, Var) and outer in self.known:
                self._put(inner, self.known[outer][stacked:])
            if isinstance(inner, Var) and inner in self.known:
                self._put(outer, ((),) * stacked + self.known[inner])

    def _nested(self, op: Op) -> list[tuple[Body, list[tuple[Atom, Atom, int]]]]:
        return [] if op.scope else list(pairs(op))
