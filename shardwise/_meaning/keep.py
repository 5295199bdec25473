"""A walk that keeps the meanings of all operands and results, for reports and inspection.

A proof needs only the results; a report or an inspection needs all values on the way. Values in a
loop are kept as they are in every iteration, with symbols for what changes from one to the next;
those in a loop that could not be followed are not kept.

Relations between values of one program are at the end: equality, being a part, changing in a loop.
Each answer is proved: if it is not known, the answer is no.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._mesh import Axis
from .._program import Body, Op, Scan, walk
from . import term as T
from .collectives import dealt
from .loops import by_symbols, free_in, no_iterations, one_iteration
from .value import Unknown, Value, read_as, whole
from .walk import Walk, literal

Names = Mapping[tuple[Any, ...], str]
"""The names of symbols, by their parameters: `("argument", 3)` is `x`."""

LARGE = 1024
"""Constants with more elements than this become symbols: reading their values takes time."""


@dataclasses.dataclass(frozen=True, eq=False)
class Known:
    """The meanings of the operands and the results of one operation."""

    ins: list[Value]
    outs: list[Value]
    names: Names
    depth: int
    """The number of loops around the operation."""


@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """The meanings of all values of a program."""

    ops: dict[int, Known]
    inputs: dict[int, list[Value]]
    unknown: frozenset[T.Term]
    """Symbols that stand for results about which nothing is known."""

    def of(self, op: Op) -> Known | None:
        """Return the meanings at an operation, or None where it was not followed."""
        return self.ops.get(id(op))

    def inputs_of(self, body: Body) -> list[Value] | None:
        """Return the meanings of a body's inputs."""
        return self.inputs.get(id(body))


def keep(body: Body, constants: Sequence[Any], paths: Sequence[str]) -> Kept:
    """Read a program whose first inputs are `constants`, and whose others have these names."""
    names = {("argument", index): path for index, path in enumerate(paths)}
    keeping = _Keeping(names)
    ins = [_constant(index, value) for index, value in enumerate(constants)]
    for index, var in enumerate(body.ins[len(constants) :]):
        ins.append(whole(T.symbol("argument", index, shape=tuple(var.shape))))
    keeping.run(body, ins)
    return Kept(keeping.ops, keeping.inputs, frozenset(keeping.mistakes))


def _constant(index: int, value: Any) -> Value:
    shape = tuple(np.shape(value))
    if np.prod(shape, dtype=int) > LARGE:
        return whole(T.symbol("constant", index, shape=shape))
    return whole(literal(value))


class _Keeping(Walk):
    strategies = (no_iterations, one_iteration, by_symbols)

    def __init__(self, names: Names):
        super().__init__()
        self.names = names
        self.ops: dict[int, Known] = {}
        self.inputs: dict[int, list[Value]] = {}

    def run(self, body: Body, ins: Sequence[Value]) -> list[Value]:
        self.inputs[id(body)] = list(ins)
        return super().run(body, ins)

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
        """Return names for the elements that a loop scans over."""
        names = {}
        for index, value in enumerate(ins[op.consts + op.carry :]):
            name = self.names.get(value.term.params) if value.term.op == "symbol" else None
            if name is not None:
                names["step", self.depth + 1, index] = f"{name}[i]"
        return names

    def opaque(self, op: Op, ins: list[Value], unknown: Unknown) -> list[Value]:
        # A loop that does not reach a fixed point leaves readings that are not true.
        for body in op.bodies:
            self.inputs.pop(id(body), None)
            for inner in walk(body.ops):
                self.ops.pop(id(inner), None)
                for nested in inner.bodies:
                    self.inputs.pop(id(nested), None)
        return super().opaque(op, ins, unknown)


# --- relations between values

Seen = dict[T.Term, bool]


def same_reading(a: Value, b: Value) -> bool:
    """Return whether every device has the same in both values, in any reading.

    For shares only their sum is known, not which share a device has.
    """
    if a.owed or b.owed:
        return False
    if a == b:
        return True
    if a.local != b.local or a.axes != b.axes:
        return False
    try:
        return read_as(a, b.dims) == b or a == read_as(b, a.dims)
    except Unknown:
        return False


def own_part(v: Value, dimension: int, axes: Sequence[Axis]) -> Value | None:
    """Return each device's block of a replicated dimension, or None if that is not defined."""
    try:
        return dealt(v, dimension, axes)
    except Unknown:
        return None


def is_number(v: Value) -> bool:
    """Return whether a value is a constant number."""
    return T.is_uniform(v.term) and T.is_one(T.core(v.term))


def changes_in_loop(v: Value, depth: int, kept: Kept, seen: Seen) -> bool:
    """Return whether a value may change between iterations of the loop at this depth.

    `seen` caches answers for further questions about the same loop.
    """
    if not seen:
        seen.update(dict.fromkeys(kept.unknown, True))
    return bool(v.owed) or free_in(v.term, depth, seen)
