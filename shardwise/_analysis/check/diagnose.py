"""Where a wrong result comes from.

The program on the mesh in question and on the mesh of ones are the same list of operations with
other sizes, so that most values have a twin. A value that is right, or is a share that only has to
be reduced, is not to blame, nor is anything before it. What is left leads from the mistake to the
wrong result. If a value among these is the same on all devices, the first such one is where the
program starts to depend on their number. If all of them differ between the devices, it is a share
that was used without being reduced; failing that, the first operation that makes right values off.
Values that have no twin stand between those that have one: a loop over devices takes more turns.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..._program import (
    Atom,
    AxisIndex,
    Body,
    Collective,
    Join,
    Leaf,
    Op,
    Scan,
    Var,
    Where,
    While,
    derivatives_of,
    walk,
)
from ..._program.collectives import RULES
from ..._program.primitives import UNKNOWN, of
from .flow import ancestors, carried, deciding, felt, needed
from .relate import OFF, REDUCE, RIGHT, UNLIKE, Agree, Held, Relation, relate

Beside = Mapping[Var, tuple[Held, np.ndarray]]
"""Values as the devices hold them, each with its twin on one device."""

Known = Mapping[Var, Relation]
"""What values are to their twins."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """The operation to blame, and the reduction that its value lacks, if that is all."""

    op: Op
    lacks: Relation = OFF
    same: bool = False
    """Whether its value is the same on every device, and yet depends on how many there are."""


def relations(
    body: Body, target: Var, beside: Beside, twins: Mapping[Var, Var], agree: Agree
) -> Known:
    """What each value on the way to a result is to its twin, as far as that is known."""
    ops = ancestors(body, target)
    used = {target, *(atom for op in ops for atom in op.ins if isinstance(atom, Var))}
    known = {
        var: relate(*beside[var], agree, _reductions(op, var))
        for op in ops
        for var in felt(op, used)
        if var in beside
    }
    # One value on one device may be several on the mesh, as they become it: the last one counts.
    last = {twins[var]: var for var in known}
    return {var: one for var, one in known.items() if one is not OFF or last[twins[var]] is var}


def origin(body: Body, target: Var, known: Known) -> Origin | None:
    """The operation from which a wrong result starts to depend on the number of devices."""
    ops = ancestors(body, target)
    constant = _constants(body)
    blamed = _blamed(ops, target, known)
    # A device's own number is what it should be.
    path = [op for op in blamed if not _apart_from(op, constant) and not isinstance(op, AxisIndex)]
    same = (op for op in path if any(known.get(v) is OFF for v in _the_same(op)))
    # What no value on one device is beside may mend what came before it.
    surely = _blamed(ops, target, known, (OFF, UNLIKE)) if known.get(target) is OFF else ()
    own = {*path}
    off = (op for op in [*surely, *path] if op in own and _is_off(op, known))
    if op := next(same, None):
        # What is computed outside from the parts of a wrong array is not to blame: the parts are.
        before = blamed[: blamed.index(op)]
        joined = (one for one in before if isinstance(one, Join) and _split_and_off(one, known))
        parts = next((one.ins[0] for one in joined), None)
        found = origin(body, parts, known) if isinstance(parts, Var) else None
        return found or Origin(op, same=True)
    makers = {out: op for op in ops for out in op.outs}
    if known.get(target, OFF).share:
        return _share(target, makers, known)
    if op := next(off, None) or next(iter(path), None):
        used = [a for a in op.ins if isinstance(a, Var) and a in makers]
        share = next((a for a in used if known.get(a, OFF).share), None)
        blame_share = share and not isinstance(op, Collective)
        if share and blame_share:
            return _share(_made(share, makers, known), makers, known)
        return Origin(_in_loop(op, known))
    return None


def _the_same(op: Op) -> list[Var]:
    """What an operation gives that is the same on all devices, or on all that it meets."""
    if isinstance(op, Collective) and RULES[op.name].agrees:
        return [var for var in op.outs if not var.axes & {*op.axes}]
    return [var for var in op.outs if not var.axes]


def leads_to(body: Body, target: Var, known: Known, cause: Op) -> bool:
    """Whether what an operation gives can be what makes a result wrong.

    It is not where every way from it to the result goes through values that are right.
    """
    if not any(op is cause for op in walk(body.ops)):
        return True  # it was read in another form than it is run in
    open_ = {target}
    for op in reversed(body.ops):
        if any(out in open_ and known.get(out) is not RIGHT for out in op.outs):
            if any(one is cause for one in walk([op])):
                return True
            open_ |= {a for a in op.ins if isinstance(a, Var)}
    return False


def _split_and_off(join: Join, known: Known) -> bool:
    return bool(join.axes) and known.get(join.outs[0]) is OFF


def _in_loop(op: Op, known: Known) -> Op:
    """Of a loop that makes right values wrong, the operation at whose value that begins.

    After the last turn what is carried is what the last turn gave. If one wrong value among those
    carried needs no other wrong one, it is the first; but where it decides on another turn, there
    may be too many of them, or too few.
    """
    if not isinstance(op, Scan | While):
        return op
    own = carried(op)
    off = [i for i, out in enumerate(op.outs[: len(own)]) if known.get(out) is OFF]
    needs = {i: needed(op.body, op.body.outs[i]) for i in off}
    alone = [i for i in off if not any(own[j] in needs[i] for j in off if j != i)]
    if deciding(op) & {*alone}:
        return op
    last = op.body.outs[alone[0]] if len(alone) == 1 else None
    makers = {out: one for one in op.body.ops for out in one.outs}
    found = makers.get(last) if isinstance(last, Var) else None
    return found if found is not None and found.where.file else op


def _reductions(op: Op, var: Var) -> tuple[str, ...]:
    """What may be missing. That one number of several is the right one may be chance."""
    compares = isinstance(op, Leaf) and op.name in {"reduce_max", "reduce_min"}
    return tuple(REDUCE) if compares or math.prod(var.shape) > 1 else ("psum", "pmean")


def _apart_from(op: Op, constant: set[Var]) -> bool:
    return isinstance(op, Join) or constant.issuperset(op.outs)


def _share(var: Var, makers: dict[Var, Op], known: Known) -> Origin:
    """A share that is used as if it were the whole: where it was made, or differentiated."""
    chain = [makers[var]]
    while not chain[-1].backward:
        before = [a for a in chain[-1].ins if isinstance(a, Var) and known.get(a, RIGHT).share]
        if not before or before[0] not in makers:
            return Origin(_inside(makers[var], makers), known[var])
        chain.append(makers[before[0]])
    return Origin(chain[-1], known[var])


def _made(var: Var, makers: dict[Var, Op], known: Known) -> Var:
    """Along sums, multiples and other shapes of a share back to where it was made."""
    while True:
        same = [
            a
            for a in makers[var].ins
            if isinstance(a, Var) and a in makers and known.get(a, RIGHT).like(known[var])
        ]
        if not same:
            return var
        var = same[0]


def _inside(op: Op, makers: dict[Var, Op]) -> Op:
    """What made a result, where `op` only puts its parts together."""
    while isinstance(op, Join) and op.ins[0] in makers:
        op = makers[op.ins[0]]
    return op


def _blamed(
    ops: list[Op],
    target: Var,
    known: Known,
    guilty: Sequence[Relation | None] = (None, OFF, UNLIKE),
) -> list[Op]:
    """The operations between the mistake and the target, in program order."""
    open_ = {target}
    found = []
    for op in reversed(ops):
        if any(out in open_ for out in op.outs):
            found.append(op)
            open_ |= {a for a in op.ins if isinstance(a, Var) and known.get(a) in guilty}
    return found[::-1]


def _is_off(op: Op, known: Known) -> bool:
    return any(known.get(out) is OFF for out in op.outs)


def _constants(body: Body) -> set[Var]:
    """Values made of nothing but numbers in the program: a local size may be one of them."""
    found: set[Var] = set()
    for op in body.ops:
        if isinstance(op, Leaf) and all(not isinstance(a, Var) or a in found for a in op.ins):
            found |= set(op.outs)
    return found


def place(op: Op, body: Body) -> Where:
    """The line to name for an operation, or for the next one that has a line."""
    line = line_of(op)
    return line if line.file else _later(op, body)


def line_of(op: Op) -> Where:
    """The line of an operation: for one that autodiff made, the line of the `grad`."""
    around = (op.source, *op.calls) if op.backward else ()
    asked = (line for source in around for _, line in derivatives_of(source))
    return next(asked, op.where)


def gradient_before(body: Body, target: Atom) -> Op | None:
    """The last operation of the gradient that a value is made from, if it is from one."""
    backward = [op for op in ancestors(body, target) if op.backward]
    return backward[-1] if backward else None


def _later(op: Op, body: Body) -> Where:
    """The line of the first operation with a known one that uses what `op` gives."""
    reached = set(op.outs)
    for other in body.ops:
        if any(isinstance(atom, Var) and atom in reached for atom in other.ins):
            if other.where.file:
                return other.where
            reached |= set(other.outs)
    return op.where


def follows_sharding(body: Body, ones: Body, target: Atom) -> Op | None:
    """A random number drawn in a shape, or with a key, that the mesh decides on."""
    there = [op for op in walk(ancestors(body, target)) if _draws(op)]
    shapes = {var.shape for op in walk(ones.ops) if _draws(op) for var in op.outs}
    for op in there:
        if any(var.axes or var.shape not in shapes for var in op.outs):
            return op
    return None


def _draws(op: Op) -> bool:
    """Return whether an operation draws random numbers; making keys is none."""
    row = of(op.name) if isinstance(op, Leaf) else UNKNOWN
    return row.random and not row.keys


def mean_of_means(body: Body, op: Op, beside: Beside, agree: Agree) -> bool:
    """Whether a sum over devices has a quotient in it that is right once both sides are summed."""
    if not isinstance(op, Collective) or op.name != "psum":
        return False
    division = _division_under(body, op)
    if division is None or any(v not in beside for v in [*division.ins, *division.outs]):
        return False
    above, below = (beside[atom][0] for atom in division.ins if isinstance(atom, Var))
    right = beside[division.outs[0]][1]
    with np.errstate(all="ignore"):
        quotient = above.rows.sum(0) / below.rows.sum(0)
    return quotient.shape == right.shape and agree(quotient, right)


def _division_under(body: Body, op: Collective) -> Leaf | None:
    """A division by something that differs between the devices, a few steps before a sum."""
    makers = {out: maker for maker in body.ops for out in maker.outs}
    atom = op.ins[0]
    for _ in range(8):
        maker = makers.get(atom) if isinstance(atom, Var) else None
        if not isinstance(maker, Leaf) or not maker.ins:
            return None
        below = maker.ins[1] if maker.name == "div" else None
        if isinstance(below, Var) and below.axes & set(op.axes) and isinstance(maker.ins[0], Var):
            return maker
        atom = maker.ins[0]
    return None
