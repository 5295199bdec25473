"""Infer the layout of values outside `shard_map`: arguments, results and values in between.

Inside a `shard_map` body shapes are per device. Outside they are whole, and the compiler decides
the layout. It starts from the specs, and so does this analysis: an array that enters a `shard_map`
has the layout of its spec, a result too, and elementwise operations keep the layout. All other
values count as replicated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..._mesh import Axis, Placement
from ..._program import Atom, Body, Join, Leaf, Op, Split, Var, pairs, primitives

KEEPS_LAYOUT = primitives.names(lambda p: p.pointwise or p.identity)
"""Operations whose result has the layout of their operands."""


class Layouts:
    """The layout of each value outside `shard_map`."""

    def __init__(self, body: Body, placements: dict[Var, Placement]):
        self.known: dict[Var, Placement] = dict(placements)
        self.changed = True
        while self.changed:
            self.changed = False
            self._forth(body)
            self._back(body)

    def of(self, atom: Atom) -> Placement:
        """Return the axes that split each dimension; none where nothing is known."""
        if not isinstance(atom, Var):
            return ()
        return self.known.get(atom, ((),) * len(atom.shape))

    def axes(self, atom: Atom) -> tuple[Axis, ...]:
        """Return all axes that split a value."""
        return tuple(axis for row in self.of(atom) for axis in row)

    def local_shape(self, var: Var) -> tuple[int, ...]:
        """Return the shape of one device's part."""
        parts = [math.prod(axis.size for axis in row) for row in self.of(var)]
        return tuple(-(-size // count) for size, count in zip(var.shape, parts, strict=True))

    def bytes(self, var: Var) -> int:
        """Return the bytes of one device's part."""
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
            for inner, tied in self._nested(op):
                self._share(tied)
                self._forth(inner)
                self._share(tied)

    def _back(self, body: Body) -> None:
        for op in reversed(body.ops):
            if isinstance(op, Split):
                self._put(op.ins[0], self._within(op.placement, op.outs[0]))
            elif isinstance(op, Leaf) and not op.scope and op.name in KEEPS_LAYOUT:
                for atom in op.ins:
                    if isinstance(atom, Var) and atom.shape == op.outs[0].shape:
                        self._put(atom, self.known.get(op.outs[0]))
            for inner, tied in self._nested(op):
                self._share(tied)
                self._back(inner)
                self._share(tied)

    def _within(self, placement: Placement, part: Var) -> Placement:
        """Return a layout with the axes of a nested `shard_map` appended."""
        rows = zip(placement, self.of(part), strict=True)
        return tuple(outer + inner for outer, inner in rows)

    def _alike(self, op: Op, out: Var) -> Iterator[Placement]:
        """Yield the layouts of operands that have the shape of a result."""
        for atom in op.ins:
            if isinstance(atom, Var) and atom.shape == out.shape and atom in self.known:
                yield self.known[atom]

    def _share(self, same: list[tuple[Atom, Atom, int]]) -> None:
        """Share layouts between values outside and inside a loop; stacked ones add a dimension."""
        for outer, inner, stacked in same:
            if isinstance(outer, Var) and outer in self.known:
                self._put(inner, self.known[outer][stacked:])
            if isinstance(inner, Var) and inner in self.known:
                self._put(outer, ((),) * stacked + self.known[inner])

    def _nested(self, op: Op) -> list[tuple[Body, list[tuple[Atom, Atom, int]]]]:
        return [] if op.scope else list(pairs(op))
