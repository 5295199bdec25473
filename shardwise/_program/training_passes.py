"""Which pass of a training step an operation belongs to: forward, backward, or update.

JAX marks the operations of a derivative: those of the backward pass have `transpose` on their name
stack, those of a differentiated forward pass `jvp`. Unmarked operations that depend on the backward
pass are the update: averaging and clipping gradients, the optimizer. So are operations that only
the update uses, such as a decayed moment or a bias correction. An exception is an operation at a
source line of the forward pass that also reads other data: it evaluates the new parameters.
"""

from __future__ import annotations

from .ir import Body, Join, Op, Scan, Split, Var, While, pairs, walk
from .where import Where


class Passes:
    """The pass (forward, backward, update) of each operation of a program."""

    def __init__(self, body: Body):
        self.by_op: dict[int, str] = {}
        self._body = body
        self._places: set[Where] | None = None
        self._mark(body, set())
        self._mark_feeders(body)

    def of(self, op: Op) -> str:
        """Return `forward`, `backward` or `update`."""
        return self.by_op.get(id(op), "forward")

    def _mark(self, body: Body, behind: set[Var]) -> None:
        """Mark operations, and add the values that depend on the backward pass to `behind`."""
        for op in body.ops:
            kind = self.by_op[id(op)] = _marked_pass(op) or self._later(op, behind)
            for inner, values in pairs(op):
                # Values carried to the next iteration do not count: the parameters that a step
                # has updated are the input of another forward pass.
                entering = {v for outer, v, _ in values[: len(inner.ins)] if outer in behind}
                marked = {v for v in entering if isinstance(v, Var)}
                self._mark(inner, marked)
                behind |= {outer for outer, v, _ in values[len(inner.ins) :] if v in marked}  # pyright: ignore[reportAssignmentType]
            if kind == "backward" or (kind == "update" and not op.bodies):
                behind |= set(op.outs)

    def _mark_feeders(self, body: Body) -> None:
        """Mark unmarked operations that only the update uses as update."""
        users: dict[Var, set[str]] = {}
        for op in reversed(body.ops):
            passes = {name for out in op.outs for name in users.get(out, ())}
            moves = isinstance(op, Split | Join)  # belongs to the pass that uses its result
            plain = self.of(op) == "forward" and not _marked_pass(op) and not moves
            if plain and passes == {"update"}:
                for inner in walk([op]):
                    self.by_op[id(inner)] = _marked_pass(inner) or "update"
            for atom in op.ins:
                if isinstance(atom, Var):
                    users.setdefault(atom, set()).update(passes if moves else {self.of(op)})
            for inner in op.bodies:
                self._mark_feeders(inner)

    def _later(self, op: Op, behind: set[Var]) -> str:
        """Return the pass of an unmarked operation."""
        inputs = [atom for atom in op.ins if isinstance(atom, Var)]
        if not any(var in behind for var in inputs):
            return "forward"
        recomputed = not all(var in behind for var in inputs) and op.where in self._forward_places()
        return "forward" if recomputed else "update"

    def _forward_places(self) -> set[Where]:
        """Return the source lines of the forward pass."""
        if self._places is None:
            ops = (op for op in walk(self._body.ops) if op.differentiated and not op.backward)
            self._places = {op.where for op in ops if op.where.file}
        return self._places


def _marked_pass(op: Op) -> str:
    if op.backward:
        return "backward"
    return "forward" if op.differentiated else ""


def residuals_of(body: Body, passes: Passes) -> set[Var]:
    """Return the values that only the backward pass uses.

    Beside `tanh(x)`, for example, a differentiated forward pass also computes `1 - tanh(x)`, which
    no line of the program mentions.
    """
    residuals: set[Var] = set()
    _collect(body, {atom for atom in body.outs if isinstance(atom, Var)}, residuals, passes)
    return residuals


def _collect(body: Body, used: set[Var], residuals: set[Var], passes: Passes) -> None:
    # An unused operation, such as the loss if only `grad` is requested, is part of the program, and
    # so are its operands.
    for op in body.dropped:
        if not op.backward:
            used |= {atom for atom in op.ins if isinstance(atom, Var)}
    for op in reversed(body.ops):
        if passes.of(op) == "backward":
            continue
        for inner, values in pairs(op):
            outs = values[len(inner.ins) :]
            carried = {v for i, (outer, v, _) in enumerate(outs) if outer in used or i < _carry(op)}
            _collect(inner, {v for v in carried if isinstance(v, Var)}, residuals, passes)
        if op.differentiated:
            residuals |= {var for var in op.outs if var not in used}
        if not residuals.issuperset(op.outs):
            used |= {atom for atom in op.ins if isinstance(atom, Var)}
    _add_derived(body, residuals, passes)


def _add_derived(body: Body, residuals: set[Var], passes: Passes) -> None:
    """Add the values that the backward pass computes from residuals alone."""
    for op in body.ops:
        inputs = [atom for atom in op.ins if isinstance(atom, Var)]
        if passes.of(op) == "backward":
            if inputs and residuals.issuperset(inputs):
                residuals |= set(op.outs)
            for inner in op.bodies:
                _add_derived(inner, residuals, passes)


def _carry(op: Op) -> int:
    """Return how many of a loop's results, the first ones, are passed to the next iteration."""
    match op:
        case Scan():
            return op.carry
        case While():
            return len(op.outs)
    return 0
