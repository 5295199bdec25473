"""Reductions over devices that a loop does nothing with but add them up."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

from .ir import Collective, Leaf, Op, Scan, Var
from .primitives import ADDITIONS, of


@dataclasses.dataclass
class AddedUp:
    """A total that a loop carries: what devices exchange, what is done with it, the addition."""

    place: int
    collective: Collective
    between: list[Leaf]
    add: Leaf


def is_move(op: Leaf) -> bool:
    """Return whether an operation only reorders elements: any reduction passes through it."""
    return of(op.name).moves == "reorder"


def added_up(loop: Scan, passes: Callable[[Leaf], bool] = is_move) -> list[AddedUp]:
    """What a loop adds up; `passes` says what may be done with it before."""
    read = collections.Counter(
        atom
        for atoms in (*(op.ins for op in loop.body.ops), loop.body.outs)
        for atom in atoms
        if isinstance(atom, Var)
    )
    makers = {var: op for op in loop.body.ops for var in op.outs}

    def maker(atom: object) -> Op | None:
        """What makes a value that is read but once."""
        return makers.get(atom) if isinstance(atom, Var) and read[atom] == 1 else None

    found = []
    for place, total in enumerate(loop.body.ins[loop.consts : loop.consts + loop.carry]):
        add = maker(loop.body.outs[place])
        if not isinstance(add, Leaf) or add.name not in ADDITIONS or read[total] != 1:
            continue
        others = [atom for atom in add.ins if atom is not total]
        if len(others) != 1:
            continue
        between: list[Leaf] = []
        while isinstance(made := maker(others[0]), Leaf) and passes(made):
            between.insert(0, made)
            others = [atom for atom in made.ins if isinstance(atom, Var)]
        if isinstance(made, Collective):
            found.append(AddedUp(place, made, between, add))
    return found
