"""Entry points: read a traced program and compare its results with a reference."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from .._mesh import Axis
from .._program import Atom, Body, live, walk
from . import term as T
from .bits import dtype_of, held
from .compare import Gap, gaps, mistakes_in
from .devices import DeviceWalk, Many, TooLong
from .merged import Merger, equal_merged
from .reroll import rolled
from .value import Value, whole
from .walk import Walk, literal

WORK = 1 << 20
"""The work allowed for a walk that keeps devices apart, in operands handled."""


@dataclasses.dataclass(frozen=True, eq=False)
class Meaning:
    """The results of reading a program on one mesh."""

    walk: Walk
    results: list[Value]


def read(body: Body, constants: Sequence[Any], reference: Meaning | None = None) -> Meaning:
    """Read a program whose first inputs are `constants` and whose others are its arguments."""
    return _walked(Walk(reference.walk if reference is not None else None), body, constants)


class Reading:
    """A program that is read, alone or to be compared with the reference `plain`."""

    def __init__(self, body: Body, constants: Sequence[Any], plain: Reading | None = None):
        self.body, self.constants, self.plain = body, constants, plain

    def followed(self) -> Reading:
        """Read the program now, and return it."""
        assert self.meaning
        return self

    @functools.cached_property
    def meaning(self) -> Meaning:
        """The meaning of the program."""
        plain = self.plain.meaning if self.plain is not None else None
        return read(self.body, self.constants, plain)

    @functools.cached_property
    def loops(self) -> Body:
        """The program with unrolled loops turned back into loops."""
        return rolled(self.body)

    @functools.cached_property
    def as_loops(self) -> Meaning:
        """The meaning of `loops`."""
        plain = self.plain.as_loops if self.plain is not None else None
        return read(self.loops, self.constants, plain)

    def gaps(self) -> list[list[Gap]]:
        """Return the gaps between each result and the reference.

        Results that remain undecided are compared again with unrolled loops read as loops.
        """
        assert self.plain is not None
        first = self._parted(self.body, self.plain.meaning, self.meaning)
        if all(map(_says, first)):
            return first
        try:
            if self.loops is self.body and self.plain.loops is self.plain.body:
                return first
            second = self._parted(self.loops, self.plain.as_loops, self.as_loops)
        except T.TooLate:
            return first
        return [new if _says(new) else old for old, new in zip(first, second, strict=True)]

    def apart(
        self,
        axis: Axis | None,
        plain: Meaning | None = None,
        entirely: bool = False,
        one_iteration: bool = False,
    ) -> Meaning | None:
        """Read the program with the devices along an axis kept apart and its loops unrolled.

        `entirely`: values that are split along the axis are kept apart from the start, not only
        where devices do different things. `one_iteration`: loops are not unrolled; one iteration is
        read for each device. Return None if the program is too long for that.
        """
        reference = plain.walk if plain is not None else None
        device_walk = DeviceWalk(axis, reference, entirely, one_iteration)
        try:
            with T.at_most(WORK):
                return _walked(device_walk, self.body, self.constants)
        except (TooLong, T.TooMuch, T.TooLate):
            return None

    def _parted(self, body: Body, plain: Meaning, own: Meaning) -> list[list[Gap]]:
        """Compare every result with the reference; those for which there is no time are long."""
        merge = Merger()
        rows = []
        for out, want, got in zip(body.outs, plain.results, own.results, strict=True):
            differences: list[Gap] = []
            try:
                differences = gaps(own.walk, want, got)
                unlike = bool(differences) and all(gap.kind == "other" for gap in differences)
                if unlike and equal_merged(want, got, merge):
                    differences = []
                elif differences and len(body.outs) > 1:
                    differences = self._named(differences, body, plain, out, want)
            except (T.TooMuch, T.TooLate):
                differences = differences or [Gap("other", got.term, long=True)]
            rows.append(differences)
        return rows

    def _named(
        self, found: list[Gap], body: Body, plain: Meaning, out: Atom, want: Value
    ) -> list[Gap]:
        """Return the gaps: of two lines that compute the same, that which the result depends on."""
        alone = Body(body.ins, live(body.ops, [out]), [out])
        if not _names_others(found, body, alone):
            return found
        reread = read(alone, self.constants, plain)
        return gaps(reread.walk, want, reread.results[0])


def _names_others(found: list[Gap], body: Body, alone: Body) -> bool:
    """Return whether a gap names an operation that only other results depend on."""
    others = {id(op) for op in walk(body.ops)} - {id(op) for op in walk(alone.ops)}
    return any(id(op) in others for gap in found for op in gap.ops)


def _says(found: list[Gap]) -> bool:
    """Return whether a comparison is conclusive: no gap, or only factors and mistakes."""
    return all(gap.kind in ("times", "mistake") for gap in found)


def has_mistakes(own: Meaning, result: Value) -> bool:
    """Return whether a result depends on an operation that no rule covers."""
    return any(True for _ in mistakes_in(own.walk, result.term))


def _walked(own: Walk, body: Body, constants: Sequence[Any]) -> Meaning:
    ins = [whole(literal(value)) for value in constants]
    for index, var in enumerate(body.ins[len(constants) :]):
        ins.append(whole(T.symbol("argument", index, shape=tuple(var.shape))))
    own.seen.update(v.term for v in ins)
    results = zip(map(one_of, own.run(body, ins)), map(dtype_of, body.outs), strict=True)
    # The reference may have a result with more bits.
    return Meaning(own, [held(result, dtype) for result, dtype in results])


def one_of(result: Any) -> Value:
    """Return a result; of one that differs between devices outside of `shard_map`, the first."""
    return result.values[0] if isinstance(result, Many) else result
