"""A walk that keeps what every operation takes and gives, for those who tell it to people.

A proof needs the results alone; a report or an inspection needs all that stands on the way. What
stands in a loop is kept as it is at every turn of it, with symbols for what changes from one to the
next; what stands in a loop that could not be followed is not kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .._program import Body, Op, Scan, walk
from . import term as T
from .value import Unknown, Value, whole
from .walk import Walk, literal

Names = Mapping[tuple[Any, ...], str]
"""What symbols are called, by their parameters: `("argument", 3)` is `x`."""

LARGE = 1024
"""Constants with more elements than this are not looked into: reading them takes time."""


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """What the operands and the results of one operation mean."""

    ins: list[Value]
    outs: list[Value]
    names: Names
    depth: int
    """In how many loops it stands."""


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """The meanings of all values of a program."""

    ops: dict[int, Known]
    inputs: dict[int, list[Value]]
    unknown: frozenset[T.Term]
    """Terms of which nothing is known: each stands for one operation's result."""

    def of(self, op: Op) -> Known | None:
        """What an operation takes and gives; None where it was not followed."""
        return self.ops.get(id(op))

    def inputs_of(self, body: Body) -> list[Value] | None:
        """What goes into a list of operations."""
        return self.inputs.get(id(body))


def keep(body: Body, constants: Sequence[Any], paths: Sequence[str]) -> Kept:
    """Read a program whose first inputs are `constants`, and whose others have these names."""
    names = {("argument", index): path for index, path in enumerate(paths)}
    own = _Keeping(names)
    ins = [_constant(index, value) for index, value in enumerate(constants)]
    for index, var in enumerate(body.ins[len(constants) :]):
        ins.append(whole(T.symbol("argument", index, shape=tuple(var.shape))))
    own.run(body, ins)
    return Kept(own.ops, own.inputs, frozenset(own.mistakes))


def _constant(index: int, value: Any) -> Value:
    shape = tuple(np.shape(value))
    if np.prod(shape, dtype=int) > LARGE:
        return whole(T.symbol("constant", index, shape=shape))
    return whole(literal(value))


class _Keeping(Walk):
    turn_by_turn = True

    def __init__(self, names: Names):
        super().__init__()
        self.names = names
        self.ops: dict[int, Known] = {}
        self.inputs: dict[int, list[Value]] = {}

    def run(self, body: Body, ins: Sequence[Value]) -> list[Value]:
        self.inputs[id(body)] = list(ins)
        return super().run(body, ins)

    def in_order(self, body: Body) -> Iterator[Op]:
        # What is shown is looked up by the operation, as it stands in the program.
        return iter(body.ops)

    def remember(self, op: Op, ins: list[Value], outs: list[Value]) -> None:
        super().remember(op, ins, outs)
        self.ops[id(op)] = Known(ins, outs, self.names, self.depth)

    def apply(self, op: Op, ins: list[Value]) -> list[Value]:
        if not isinstance(op, Scan):
            return super().apply(op, ins)
        before, self.names = self.names, {**self.names, **self._stepped(op, ins)}
        try:
            return super().apply(op, ins)
        finally:
            self.names = before

    def _stepped(self, op: Scan, ins: list[Value]) -> dict[tuple[Any, ...], str]:
        """The names of what a loop steps through, one element of it at a time."""
        found = {}
        for index, value in enumerate(ins[op.consts + op.carry :]):
            name = self.names.get(value.term.params) if value.term.op == "symbol" else None
            if name is not None:
                found["step", self.depth + 1, index] = f"{name}[i]"
        return found

    def opaque(self, op: Op, ins: list[Value], unknown: Unknown) -> list[Value]:
        # A loop that does not come to a fixed point leaves readings that do not hold.
        for body in op.bodies:
            self.inputs.pop(id(body), None)
            for inner in walk(body.ops):
                self.ops.pop(id(inner), None)
                for nested in inner.bodies:
                    self.inputs.pop(id(nested), None)
        return super().opaque(op, ins, unknown)
