"""The memory that a loop over shards takes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from ..._mesh import Axis
from ..._program import Op, Var


@dataclasses.dataclass(frozen=True)
class LoopMemory:
    """Estimates of the bytes that a loop over the devices along an axis takes."""

    axis: Axis
    ops: Sequence[Op]
    keep: Sequence[Var]
    """The values that are stored for all devices."""
    totals: int
    """Bytes that are accumulated over the devices."""

    def needed(self, at_once: int) -> int:
        """Estimate the bytes needed in addition to the stored values."""
        if at_once < self.axis.size:
            return at_once * self.per_device + self.totals
        stored = sum(var.bytes for var in self.keep)
        return at_once * (footprint(self.ops, self.keep) - stored) + self.totals

    @functools.cached_property
    def per_device(self) -> int:
        """Estimate the bytes of one device."""
        return footprint(self.ops)


def footprint(ops: Sequence[Op], keep: Sequence[Var] = ()) -> int:
    """Estimate the peak of live bytes on one device."""
    last = dict.fromkeys(keep, len(ops))
    for index, op in enumerate(ops):
        for atom in op.ins:
            if isinstance(atom, Var):
                last[atom] = max(index, last.get(atom, 0))
    alive: set[Var] = set()
    live_bytes = peak = 0
    for index, op in enumerate(ops):
        nested = max((footprint(body.ops) for body in op.bodies), default=0)
        alive.update(op.outs)
        live_bytes += sum(var.bytes for var in op.outs)
        peak = max(peak, live_bytes + nested)
        for atom in {*op.ins, *op.outs}:
            if isinstance(atom, Var) and atom in alive and last.get(atom, index) <= index:
                alive.remove(atom)
                live_bytes -= atom.bytes
    return peak
