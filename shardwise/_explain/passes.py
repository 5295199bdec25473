"""Which pass of a training step an operation belongs to: forward, backward, or update.

JAX marks what it makes for a derivative: an operation of the backward pass has `transpose` on its
name stack, one of a forward pass that is differentiated `jvp`. What comes of the backward pass and
is not marked is the update: gradients averaged and clipped, the optimizer.
"""

from __future__ import annotations

from .._program import Body, Op, Var
from .placing import pairs


class Passes:
    """The pass of each operation of a program."""

    def __init__(self, body: Body):
        self.found: dict[int, str] = {}
        self._mark(body, set(), "")

    def of(self, op: Op) -> str:
        """`forward`, `backward` or `update`."""
        return self.found.get(id(op), "forward")

    def _mark(self, body: Body, behind: set[Var], around: str) -> None:
        """Mark operations; afterwards `behind` holds all values that the backward pass made."""
        for op in body.ops:
            reads = any(atom in behind for atom in op.ins)
            own = self.found[id(op)] = _own(op, around) or ("update" if reads else "forward")
            for inner, values in pairs(op):
                # What one turn of a loop hands to the next is no news of a backward pass: the
                # parameters that a step has updated go into another forward pass.
                fresh = {v for outer, v, _ in values[: len(inner.ins)] if outer in behind}
                marked = {v for v in fresh if isinstance(v, Var)}
                self._mark(inner, marked, own if own == "backward" else "")
                behind |= {outer for outer, v, _ in values[len(inner.ins) :] if v in marked}  # pyright: ignore[reportAssignmentType]
            if own == "backward" or (own == "update" and not op.bodies):
                behind |= set(op.outs)


def _own(op: Op, around: str) -> str:
    if around == "backward" or op.backward:
        return "backward"
    return "forward" if op.differentiated else ""
