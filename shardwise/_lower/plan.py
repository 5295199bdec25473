"""What runs when: the order of the axes, the stages, what has to be kept, how much fits at once.

Nothing here touches an array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from .._collectives import foldable, one_by_one, wide, widen
from .._mesh import Axis
from .._program import Collective, Cond, Leaf, Lit, Op, Var, While, walk


@dataclasses.dataclass
class Stage:
    """What happens between two meetings of the devices along an axis."""

    outside: list[Op] = dataclasses.field(default_factory=list)
    """The same for every coordinate: run once."""
    inside: list[Op] = dataclasses.field(default_factory=list)
    """Different for each coordinate: run in one loop over them."""
    meetings: list[Op] = dataclasses.field(default_factory=list)
    """Where the coordinates exchange something, after the loop."""


def stages(ops: Sequence[Op], axis: Axis) -> list[Stage]:
    """Cut a list where the devices along `axis` meet."""
    out: list[Stage] = []
    level: dict[Var, int] = {}
    for op in ops:
        now = max((level.get(atom, 0) for atom in op.ins if isinstance(atom, Var)), default=0)
        while len(out) <= now:
            out.append(Stage())
        meets = axis in op.meets
        stage = out[now]
        (stage.meetings if meets else stage.inside if axis in op.needs else stage.outside).append(
            op
        )
        for var in op.outs:
            level[var] = now + meets
    return out


def concerned(ops: Sequence[Op], axes: Iterable[Axis]) -> list[Axis]:
    """Those of the axes that anything in the list differs over or meets along."""
    return [axis for axis in axes if any(axis in op.needs or axis in op.meets for op in ops)]


def outermost(ops: Sequence[Op], axes: Sequence[Axis]) -> Axis:
    """The axis to loop over first: the one along which devices meet least often.

    Its loop then holds the loops of the others, so that a training step split over data and model
    keeps the activations of one data shard, not of all.
    """
    return min(axes, key=lambda axis: sum(bool(stage.meetings) for stage in stages(ops, axis)))


@dataclasses.dataclass
class Fold:
    """A reduction whose operand is made in a loop: accumulated there, never stacked."""

    op: Collective
    operand: Var
    name: str
    product: Product | None = None


@dataclasses.dataclass
class Product:
    """A matrix product under a sum over devices: one larger product, then `after` it."""

    dot: Leaf
    after: list[Leaf]


SHAPE_ONLY = {"transpose", "reshape", "squeeze", "neg"}
"""Operations that a sum over devices passes through unchanged."""


def folds(stage: Stage, axis: Axis, inner: list[Op], uses: dict[Var, int]) -> list[Fold]:
    """The meetings that a loop can fold; adds to `inner` what they need inside it."""
    makers = {var: op for op in stage.inside for var in op.outs}
    found = []
    for op in stage.meetings:
        if not isinstance(op, Collective) or op.groups is not None or op.ins[0] not in makers:
            continue
        operand = op.ins[0]
        assert isinstance(operand, Var)
        scatters = op.name == "psum_scatter" and op.axes == (axis,)
        name = "psum" if scatters else op.name
        if name not in ("psum", "pmax", "pmin") or not foldable(name, operand.dtype):
            continue
        rest = tuple(other for other in op.axes if other != axis)
        ordered = one_by_one(name, operand.dtype)
        if ordered and rest:
            continue
        merges = name == "psum" and not rest and not ordered
        product = _product(operand, makers, uses) if merges else None
        if rest:
            operand = _reduce_rest(op, operand, rest, inner)
        found.append(Fold(op, operand, name, product))
    return found


def _reduce_rest(op: Collective, operand: Var, rest: tuple[Axis, ...], inner: list[Op]) -> Var:
    """The part of a reduction over several axes that happens inside the loop over one of them."""
    if wide(operand.dtype) != operand.dtype:
        operand = _widened(op, operand, inner)
    out = Var(operand.shape, operand.dtype)
    out.axes = operand.axes - set(rest)
    part = Collective([operand], [out], op.name, rest, op.params, where=op.where, scope=op.scope)
    part.source = op.source
    part.needs, part.meets = operand.axes, operand.axes & set(rest)
    inner.append(part)
    return out


def _widened(op: Collective, operand: Var, inner: list[Op]) -> Var:
    """The operand in the type it is reduced in: a part of a reduction is not rounded."""
    out = Var(operand.shape, wide(operand.dtype))
    out.axes = operand.axes
    cast = Leaf([operand], [out], "convert_element_type", lambda x: [widen(x)], scope=op.scope)
    cast.where, cast.source, cast.needs = op.where, op.source, operand.axes
    inner.append(cast)
    return out


def _product(var: Var, makers: dict[Var, Op], uses: dict[Var, int]) -> Product | None:
    after: list[Leaf] = []
    while True:
        op = makers.get(var)
        if not isinstance(op, Leaf) or uses.get(var) != 1:
            return None
        if op.name == "dot_general":
            return Product(op, after[::-1])
        if op.name not in SHAPE_ONLY:
            return None
        after.append(op)
        (operand,) = op.ins
        if isinstance(operand, Lit):
            return None
        var = operand


def count_uses(ops: Sequence[Op], keep: Iterable[Var]) -> dict[Var, int]:
    """How often each value is read."""
    uses: dict[Var, int] = {}
    for op in ops:
        for atom in op.ins:
            if isinstance(atom, Var):
                uses[atom] = uses.get(atom, 0) + 1
    for var in keep:
        uses[var] = uses.get(var, 0) + 1
    return uses


def reads(ops: Sequence[Op]) -> list[Var]:
    """Values that a list takes from outside, each once."""
    made = {var for op in ops for var in op.outs}
    seen: dict[Var, None] = {}
    for op in ops:
        for atom in op.ins:
            if isinstance(atom, Var) and atom not in made:
                seen[atom] = None
    return list(seen)


def footprint(ops: Sequence[Op]) -> int:
    """About how many bytes of results are alive at the worst moment, on one device."""
    last: dict[Var, int] = {}
    for index, op in enumerate(ops):
        for atom in op.ins:
            if isinstance(atom, Var):
                last[atom] = index
    alive: dict[Var, int] = {}
    peak = 0
    for index, op in enumerate(ops):
        nested = max((footprint(body.ops) for body in op.bodies), default=0)
        alive |= {var: var.bytes for var in op.outs}
        peak = max(peak, sum(alive.values()) + nested)
        for atom in {*op.ins, *op.outs}:
            if isinstance(atom, Var) and last.get(atom, index) <= index:
                alive.pop(atom, None)
    return peak


ONE_BY_ONE = {"rng_bit_generator", "pure_callback", "ragged_dot", "ragged_dot_general"}
"""Primitives that JAX cannot batch, or that give other numbers when it does."""


DRAWS = {"random_bits", "random_split", "random_fold_in", "random_gamma"}
"""What makes new random numbers or keys of a key."""


def _by_hardware(op: Leaf) -> bool:
    """Whether its keys are those of XLA's own generator: a batch of them is one long draw."""
    return any("rbg" in str(getattr(atom, "dtype", "")) for atom in op.ins)


def _alone(op: Op) -> bool:
    """Whether an operation gives a device's own result only if run for one device at a time."""
    if isinstance(op, Leaf):
        return op.effect or op.name in ONE_BY_ONE or (op.name in DRAWS and _by_hardware(op))
    if isinstance(op, Cond) and op.ins[0].axes:
        # A vmapped cond runs both branches, so a loop that the branch guards may never end.
        return any(isinstance(inner, While) for body in op.bodies for inner in walk(body.ops))
    return False


@dataclasses.dataclass(frozen=True)
class Pace:
    """How many shards to compute at once: a number, or as many as fit into `bytes`."""

    shards: int | None = 1
    bytes: float = 0.0

    def chunk(self, axis: Axis, ops: Sequence[Op]) -> tuple[int, Pace]:
        """How many coordinates of `axis` at once, and what that leaves for the loops inside."""
        if any(_alone(op) for op in walk(list(ops))):
            return 1, Pace(1)
        if self.shards is not None:
            size = min(self.shards, axis.size)
            return size, Pace(max(1, self.shards // size))
        fits = int(self.bytes // max(1, footprint(ops)))
        size = max(1, min(fits, axis.size))
        return size, Pace(None, self.bytes / size)
