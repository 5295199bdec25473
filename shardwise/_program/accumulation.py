"""Find reductions over devices whose results a loop only accumulates."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

from .ir import Collective, Leaf, Op, Scan, Var
from .primitives import ADDITIONS, of


@dataclasses.dataclass
class AddedUp:
    """A total that a loop carries: the collective, what happens to its result, the addition."""

    place: int
    collective: Collective
    between: list[Leaf]
    add: Leaf


def is_move(op: Leaf) -> bool:
    """Return whether an operation only reorders elements: any reduction passes through it."""
    return of(op.name).moves == "reorder"


def added_up(loop: Scan, passes: Callable[[Leaf], bool] = is_move) -> list[AddedUp]:
    """Return what a loop accumulates; `passes` accepts operations that may precede the addition."""
    read = collections.Counter(
        atom
        for atoms in (*(op.ins for op in loop.body.ops), loop.body.outs)
        for atom in atoms
        if isinstance(atom, Var)
    )
    producers = {var: op for op in loop.body.ops for var in op.outs}

    def producer(atom: object) -> Op | None:
        """Return the operation that computes a value with a single use."""
        return producers.get(atom) if isinstance(atom, Var) and read[atom] == 1 else None

    result = []
    for index, total in enumerate(loop.body.ins[loop.consts : loop.consts + loop.carry]):
        add = producer(loop.body.outs[index])
        if not isinstance(add, Leaf) or add.name not in ADDITIONS or read[total] != 1:
            continue
        operands = [atom for atom in add.ins if atom is not total]
        if len(operands) != 1:
            continue
        between: list[Leaf] = []
        while isinstance(operation := producer(operands[0]), Leaf) and passes(operation):
            between.insert(0, operation)
            operands = [atom for atom in operation.ins if isinstance(atom, Var)]
        if isinstance(operation, Collective):
            result.append(AddedUp(index, operation, between, add))
    return result
