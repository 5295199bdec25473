"""Read a program on several meshes, as long as there is time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..._base.doing import doing
from ..._engine.tracing import Tracing
from ..._meaning import TooLate, extended, in_time, remaining
from ..._mesh import AbstractMesh, words
from ..check import AnySize, Every
from .reading import ReadProgram, Row

FOR_NUMBERS = 0.5
"""The share of the time that is kept for a run, once a result is not proved."""


ONCE = 30.0
"""The seconds after the deadline in which a program may be read once on its first mesh.

Reading is linear in the operations, and that on one device was in time. What is not linear is not
begun any more.
"""


def read_each(
    meshes: Sequence[AbstractMesh],
    tracing: Callable[[AbstractMesh], Tracing],
    args: tuple[Any, ...],
    plain: ReadProgram,
    itself: bool,
) -> tuple[Sequence[ReadProgram], Sequence[Row], Sequence[AbstractMesh]]:
    """Return the program on each mesh with its results, and the meshes that are left out."""
    programs: list[ReadProgram] = []
    with contextlib.suppress(TooLate):
        plain.followed()
        for mesh in meshes:
            same = itself and mesh == plain.mesh
            with extended(0.0 if programs else ONCE):
                in_time()
                new = plain if same else ReadProgram.of(tracing(mesh), mesh, args, plain)
                programs.append(new if new is plain else new.followed())
    rows = [row for program in programs for row in program.compared(plain)]
    return programs, rows, meshes[len(programs) :]


class Forecast:
    """The time that reading the program on a larger mesh is expected to take.

    A program that Python unrolls has a number of operations that grows with the mesh. It is taken
    to grow on as it did between the last two meshes, and time with it.
    """

    def __init__(self, first: ReadProgram, seconds: float):
        self.last, self.growth, self.seconds = first, 0.0, seconds / max(1, first.operations)

    def add(self, program: ReadProgram, seconds: float) -> None:
        """Count a program that was read in this time."""
        devices = program.mesh.size - self.last.mesh.size
        if devices > 0:
            growth = (program.operations - self.last.operations) / devices
            self.growth, self.last = max(0.0, growth), program
        self.seconds = max(self.seconds, seconds / max(1, program.operations))

    def expected(self, mesh: AbstractMesh) -> float:
        """Return the seconds that a mesh is expected to take."""
        more = self.growth * max(0, mesh.size - self.last.mesh.size)
        return self.seconds * (self.last.operations + more)


def read_every(
    any_size: AnySize,
    every: Every,
    tracing: Callable[[AbstractMesh], Tracing],
    args: tuple[Any, ...],
    plain: ReadProgram,
    itself: bool,
    seconds: float,
) -> tuple[Sequence[ReadProgram], Sequence[Row], Every]:
    """Return the program on each size with its results, the smallest first, and what is left out.

    `itself`: the program on one device is the reference. `seconds`: how long tracing that took.
    """
    programs: list[ReadProgram] = []
    rows: list[Row] = []
    refused: dict[AbstractMesh, Exception] = {}
    began = time.monotonic()
    try:
        plain.followed()
    except TooLate:
        return programs, rows, every.without(refused, every.meshes)
    forecast = Forecast(plain, seconds + time.monotonic() - began)
    reserved, whole = 0.0, remaining()
    for number, mesh in enumerate(every.meshes):
        if remaining() - reserved < forecast.expected(mesh):
            return programs, rows, every.without(refused, every.meshes[number:])
        began = time.monotonic()
        doing(f"tracing on {words(mesh)}")
        here = tracing(mesh)
        with any_size.refusing(mesh, refused):
            here(args, {})
        if mesh in refused:
            continue
        first = itself and mesh.size == 1
        try:
            new = plain if first else ReadProgram.of(here, mesh, args, plain)
            programs.append(new if new is plain else new.followed())
        except TooLate:
            return programs, rows, every.without(refused, every.meshes[number:])
        new_rows = programs[-1].compared(plain)
        rows += new_rows
        if any(row.gaps or row.waits for row in new_rows):
            reserved = FOR_NUMBERS * whole
        forecast.add(programs[-1], time.monotonic() - began)
    every = every.without(refused, ())
    any_size.refuse_one(every, refused)
    return programs, rows, every
