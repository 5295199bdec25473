"""A program read on a mesh, and the comparison of each result with the reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ..._base.doing import doing
from ..._base.errors import ShardingError, noting
from ..._engine.tracing import Traced, Tracing
from ..._meaning import (
    ALL,
    Gap,
    Left,
    Reading,
    has_mistakes,
    late,
    same,
    same_by_iteration,
    speaks_of,
)
from ..._mesh import AbstractMesh, Axis, axes_of, words
from ..._program import Body, Op, Scan, collectives_in, walk
from ..check import paths_apart

FEW = 16
"""The largest size of an axis whose devices are kept apart."""

SHORT = 20_000
"""The maximum number of operations, on all devices, to keep an unused axis apart."""


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One result on one mesh, and its gaps to the reference."""

    path: str
    program: ReadProgram
    gaps: list[Gap]

    @property
    def mesh(self) -> AbstractMesh:
        """The mesh."""
        return self.program.mesh

    @property
    def waits(self) -> bool:
        """Whether the program may wait forever."""
        return bool(self.program.sites)


@dataclasses.dataclass(frozen=True, eq=False)
class ReadProgram:
    """A function that was read on one mesh."""

    traced: Traced
    mesh: AbstractMesh
    reading: Reading
    on: str = ""

    @classmethod
    def of(
        cls,
        tracing: Tracing,
        mesh: AbstractMesh,
        args: tuple[Any, ...],
        beside: ReadProgram | None = None,
    ) -> ReadProgram:
        """Trace a function that is to be read."""
        on = "the reference" if tracing.mesh is None else f"on {words(mesh)}"
        doing(f"tracing {on}")
        with noting(f"tracing {on}"):
            traced = tracing(args, {})
        reference = beside.reading if beside is not None else None
        return cls(traced, mesh, Reading(traced.program.body, traced.constants, reference), on)

    def followed(self) -> ReadProgram:
        """Read it now, and return it."""
        doing(f"following each value {self.on}")
        self.reading.followed()
        return self

    @property
    def body(self) -> Body:
        """The operations."""
        return self.traced.program.body

    @property
    def sites(self) -> list[Op]:
        """Operations around collectives that some devices may never reach; none on one device."""
        return [*self.traced.program.watch.sites] if self.mesh.size > 1 else []

    @property
    def passed_on(self) -> set[Axis]:
        """The axes along which parts are passed from device to device."""
        sent = (op for op in collectives_in(self.body.ops) if op.name == "ppermute")
        return {axis for op in sent for axis in op.axes}

    @property
    def operations(self) -> int:
        """The number of operations of the program."""
        return sum(1 for _ in walk(self.body.ops))

    def compared(self, plain: ReadProgram) -> list[Row]:
        """Compare every result with that of the reference."""
        if self.traced.tree != plain.traced.tree:
            differ = paths_apart(self.traced.result_paths, plain.traced.result_paths)
            raise ShardingError(
                f"on {words(self.mesh)} the results have another structure than the "
                f"reference's: {differ}",
                where="sw.prove",
                rule="Both return the same structure.",
                remedy="return the same pytree from both.",
            )
        doing(f"comparing {words(self.mesh)} with one device")
        # The program on one device is the reference itself, also where it cannot be followed.
        gaps = self.reading.gaps() if self is not plain else [[] for _ in self.body.outs]
        if any(gaps):
            gaps = self.apart(plain, gaps)
        rows = zip(self.traced.result_paths, gaps, strict=True)
        return [Row(path, self, row_gaps) for path, row_gaps in rows]

    def apart(self, plain: ReadProgram, gaps: list[list[Gap]]) -> list[list[Gap]]:
        """Compare results that are not proved again, with the devices along one axis kept apart."""
        followed: set[Axis | None] = set()
        budget = Left(ALL)
        for axis, entirely in self._ways():
            if not any(gaps) or axis in followed:
                continue
            if late():
                return [_left(old, None) for old in gaps]
            doing(f"following each device of {words(self.mesh)} by itself")
            if not entirely:
                gaps = self._by_iteration(plain, gaps, axis, budget)
                if not any(gaps):
                    return gaps
            base = plain.reading.apart(None)
            reading = base and self.reading.apart(axis, base, entirely)
            if base and reading:
                rows = list(zip(gaps, base.results, reading.results, strict=True))
                gaps = [
                    _left(old, same(want, got, budget)) if old else old for old, want, got in rows
                ]
                rest = [got for old, (_, _, got) in zip(gaps, rows, strict=True) if old]
                if not any(has_mistakes(reading, got) for got in rest):
                    followed.add(axis)  # keeping more apart would not help
            else:
                gaps = [_left(old, None) for old in gaps]
        return gaps

    def _by_iteration(
        self, plain: ReadProgram, gaps: list[list[Gap]], axis: Axis | None, left: Left
    ) -> list[list[Gap]]:
        """Compare results that are not proved again, by one iteration of every loop."""
        if not any(isinstance(op, Scan) for op in walk(self.body.ops)):
            return gaps
        base = plain.reading.apart(None, one_iteration=True)
        reading = base and self.reading.apart(axis, base, one_iteration=True)
        if not base or not reading:
            return gaps
        rows = zip(gaps, base.results, reading.results, strict=True)
        return [
            [] if old and same_by_iteration(want, got, left) else old for old, want, got in rows
        ]

    def _ways(self) -> Iterator[tuple[Axis | None, bool]]:
        """Yield the axes to keep apart, and whether entirely; first those that the program uses."""
        if self.mesh.size == 1:
            yield None, False
            return
        used = [axis for axis in speaks_of(self.body) if axis.size <= FEW]
        yield from ((axis, False) for axis in used)
        others = [axis for axis in axes_of(self.mesh).values() if axis not in used]
        small = [axis for axis in others if 1 < axis.size <= FEW]
        small = [axis for axis in small if axis.size * self.operations <= SHORT]
        yield from ((axis, True) for axis in (*used, *small))


def _left(gaps: list[Gap], same: bool | None) -> list[Gap]:
    """Return the gaps that remain after another comparison; None if it was too long."""
    if same is None:
        return [dataclasses.replace(gap, long=True) for gap in gaps]
    return [] if same else gaps
