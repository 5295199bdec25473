"""Which pass of a training step an operation belongs to: forward, backward, or update.

JAX marks what it makes for a derivative: an operation of the backward pass has `transpose` on its
name stack, one of a forward pass that is differentiated `jvp`. What comes of the backward pass and
is not marked is the update: gradients averaged and clipped, the optimizer. So is what only the
update needs, such as a decayed moment or a bias correction. Unless it is a place of the forward
pass that is met again: then the new parameters are evaluated, on data that the backward pass has
not made.
"""

from __future__ import annotations

from .ir import Body, Join, Op, Scan, Split, Var, While, pairs, walk
from .where import Where


class Passes:
    """The pass (forward, backward, update) of each operation of a program."""

    def __init__(self, body: Body):
        self.found: dict[int, str] = {}
        self._body = body
        self._places: set[Where] | None = None
        self._mark(body, set())
        self._mark_feeders(body)

    def of(self, op: Op) -> str:
        """Return `forward`, `backward` or `update`."""
        return self.found.get(id(op), "forward")

    def _mark(self, body: Body, behind: set[Var]) -> None:
        """Mark operations; afterwards `behind` contains all values that the backward pass
        computes."""
        for op in body.ops:
            kind = self.found[id(op)] = _own(op) or self._later(op, behind)
            for inner, values in pairs(op):
                # What an iteration of a loop passes to the next is not new in the backward pass:
                # the parameters that a step has updated go into another forward pass.
                entering = {v for outer, v, _ in values[: len(inner.ins)] if outer in behind}
                marked = {v for v in entering if isinstance(v, Var)}
                self._mark(inner, marked)
                behind |= {outer for outer, v, _ in values[len(inner.ins) :] if v in marked}  # pyright: ignore[reportAssignmentType]
            if kind == "backward" or (kind == "update" and not op.bodies):
                behind |= set(op.outs)

    def _mark_feeders(self, body: Body) -> None:
        """Mark as update what no derivative has marked and only the update needs."""
        users: dict[Var, set[str]] = {}
        for op in reversed(body.ops):
            passes = {name for out in op.outs for name in users.get(out, ())}
            moves = isinstance(op, Split | Join)  # needed by whoever needs what comes out
            plain = self.of(op) == "forward" and not _own(op) and not moves
            if plain and passes == {"update"}:
                for inner in walk([op]):
                    self.found[id(inner)] = _own(inner) or "update"
            for atom in op.ins:
                if isinstance(atom, Var):
                    users.setdefault(atom, set()).update(passes if moves else {self.of(op)})
            for inner in op.bodies:
                self._mark_feeders(inner)

    def _later(self, op: Op, behind: set[Var]) -> str:
        """Return the pass of an operation that no derivative has marked."""
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


def _own(op: Op) -> str:
    if op.backward:
        return "backward"
    return "forward" if op.differentiated else ""


def kept_for_backward(body: Body, passes: Passes) -> set[Var]:
    """Return the values that only the backward pass needs.

    Beside `tanh(x)` a forward pass that is differentiated also has `1 - tanh(x)`, say. No line of
    the program speaks of it.
    """
    kept: set[Var] = set()
    _keep(body, {atom for atom in body.outs if isinstance(atom, Var)}, kept, passes)
    return kept


def _keep(body: Body, wanted: set[Var], found: set[Var], passes: Passes) -> None:
    # An operation that nothing comes of, such as the loss where `grad` is all that is asked for,
    # is the program's own: what it reads is as well.
    for op in body.dropped:
        if not op.backward:
            wanted |= {atom for atom in op.ins if isinstance(atom, Var)}
    for op in reversed(body.ops):
        if passes.of(op) == "backward":
            continue
        for inner, values in pairs(op):
            outs = values[len(inner.ins) :]
            carried = {
                v for i, (outer, v, _) in enumerate(outs) if outer in wanted or i < _carry(op)
            }
            _keep(inner, {v for v in carried if isinstance(v, Var)}, found, passes)
        if op.differentiated:
            found |= {var for var in op.outs if var not in wanted}
        if not found.issuperset(op.outs):
            wanted |= {atom for atom in op.ins if isinstance(atom, Var)}
    _unpacked(body, found, passes)


def _unpacked(body: Body, found: set[Var], passes: Passes) -> None:
    """Add what the backward pass computes from nothing but what was kept for it."""
    for op in body.ops:
        inputs = [atom for atom in op.ins if isinstance(atom, Var)]
        if passes.of(op) == "backward":
            if inputs and found.issuperset(inputs):
                found |= set(op.outs)
            for inner in op.bodies:
                _unpacked(inner, found, passes)


def _carry(op: Op) -> int:
    """Return how many of a loop's results, the first ones, are passed to the next iteration."""
    match op:
        case Scan():
            return op.carry
        case While():
            return len(op.outs)
    return 0
