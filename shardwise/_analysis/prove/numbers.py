"""Runs of programs that are not proved, to find counter-examples.

A program is run unchanged if it is small enough, else with smaller arguments. Nothing is run that
would need more memory or work than a limit; this is found by tracing alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._base.doing import doing
from ..._base.errors import ShardwiseError
from ..._engine.static import Static
from ..._engine.tracing import Tracing
from ..._meaning import TooLate, late
from ..._mesh import AbstractMesh, resized, words
from ..check import Examined, examine
from ..faults import Deadlock, Finding
from ..lift import wide
from .witness import affordable, differing, elements

MANY = 1 << 21
"""Programs whose arguments have more elements than this are run with smaller ones."""

LIMIT = "the time limit of 30 s was reached"

FEW = 64
"""Meshes of more devices than this are not run."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The outcome of a run: the wrong results on each mesh, their causes, and a sentence."""

    run: bool = False
    exact: bool = False
    """Whether the run used one of the meshes, and the sizes, that the proof is about."""
    wrong: frozenset[tuple[str, str]] = frozenset()
    """Pairs of a mesh and the path of a result."""
    stuck_on: frozenset[str] = frozenset()
    """The meshes on which devices wait for each other forever."""
    findings: tuple[Finding, ...] = ()
    """The findings of `check` that are certain."""
    words: str = ""

    def refutes(self, mesh: str, path: str) -> bool:
        """Return whether this run is a counter-example to a result on a mesh."""
        return self.exact and (mesh in self.stuck_on or (mesh, path) in self.wrong)

    def shows(self, path: str) -> bool:
        """Return whether a result differs with smaller sizes."""
        return self.run and not self.exact and any(path == failed for _, failed in self.wrong)

    def agree_on(self, path: str) -> bool:
        """Return whether a result was run and was correct on all meshes that were run."""
        return self.run and all(path != failed for _, failed in self.wrong)

    def cause_of(self, mesh: str, path: str) -> Finding | None:
        """Return the finding of `check` that explains a wrong result."""
        if mesh in self.stuck_on:
            return next(
                (finding for finding in self.findings if finding.code == Deadlock.code), None
            )
        causes = (finding for finding in self.findings if path in finding.leaves)
        return next(causes, None)


def try_numbers(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    meshes: Sequence[AbstractMesh],
    reference: Any,
    decided: bool,
    options: tuple[Any, Any],
) -> Numbers:
    """Run the program on small meshes, at its own sizes or at smaller ones.

    `decided`: the meaning proves or refutes every result by itself, so no smaller sizes are tried.
    """
    small = _small_meshes(meshes)
    large = elements(args) > MANY
    if not small or (decided and large):
        return Numbers()
    try:
        if late():
            raise TooLate
        if large:
            return _smaller(f, args, small[0], reference, options)
        traced = [(Tracing(f, mesh, *options)(args, {}), mesh) for mesh in small]
        if not all(affordable(trace, mesh) for trace, mesh in traced):
            return Numbers()
        examined = examine(f, args, small, reference, options)
    except TooLate:
        return Numbers(words=f"The program was not run: {LIMIT}.")
    except (ShardwiseError, TypeError, ValueError, AssertionError, RuntimeError, MemoryError):
        return Numbers()  # without a run, the result remains unknown
    return _outcome(examined, small, exact=small[0] in meshes)


def _smaller(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    mesh: AbstractMesh,
    reference: Any,
    options: tuple[Any, Any],
) -> Numbers:
    """Run the program with smaller arguments, which makes it another program."""
    in_specs, static = options
    if static != Static():
        return Numbers()
    doing(f"running {words(mesh)} with smaller sizes")
    paths = differing(f, args, mesh, reference, in_specs)
    if paths is None:
        return Numbers()
    intro = f"With smaller sizes, on {words(mesh)}, "
    wrong = frozenset((words(mesh), path) for path in paths)
    ending = f"{sorted(paths)[0]} differs." if paths else "every result is right."
    return Numbers(True, wrong=wrong, words=intro + ending)


def _small_meshes(meshes: Sequence[AbstractMesh]) -> list[AbstractMesh]:
    """Return the smallest and largest mesh that can be run; two devices along each axis if none.

    A mistake on many devices may not show on two; and on many devices each may have a single
    element, so that nothing shows.
    """
    sized = sorted(dict.fromkeys(meshes), key=lambda mesh: mesh.size)
    few = [mesh for mesh in sized if mesh.size <= FEW]
    if few:
        return list(dict.fromkeys([few[0], few[-1]]))
    least = sized[0]
    return [resized(least, {name: min(size, 2) for name, size in least.shape.items()})]


def _outcome(examined: Examined, meshes: Sequence[AbstractMesh], exact: bool) -> Numbers:
    verdict = examined.verdict
    run = [words(mesh) for mesh in meshes]
    # Silenced findings are not reported, but they do count.
    certain = [finding for finding in (*verdict.findings, *verdict.silenced) if finding.certain]
    late = f" After that, {', and '.join(examined.left_out)}: {LIMIT}." if examined.left_out else ""
    if not certain and not (late and (examined.wrong or examined.stuck_on)):
        return Numbers(True, exact, words=f"{_where(run)}, every result is right.{late}")
    wrong = frozenset((result.mesh, result.path) for result in examined.wrong)
    stuck = frozenset(examined.stuck_on)
    affected, example = _example(examined)
    sentence = f"{_where([mesh for mesh in run if mesh in affected] or run)}: {example}"
    return Numbers(True, exact, wrong, stuck, tuple(certain), sentence + late)


def _where(meshes: Sequence[str]) -> str:
    return f"By numbers, on {', '.join(meshes)}"


def _example(examined: Examined) -> tuple[set[str], str]:
    """Return the meshes of an example, and a sentence on its element with the largest error."""
    for result in examined.wrong:
        if result.same_type and result.got.size:
            got, want = result.got, result.want.value
            with np.errstate(all="ignore"):
                gap = np.abs(wide(got) - wide(want))
            gap = np.where(np.isnan(gap), np.inf, gap)
            if not gap.any():  # the first device has the right value, and others another
                return {result.mesh}, f"{result.path} differs between devices."
            index = np.unravel_index(int(np.argmax(gap)), got.shape) if got.shape else ()
            place = f"[{', '.join(map(str, map(int, index)))}]" if index else ""
            here, there = _number(got[index]), _number(want[index])
            return {result.mesh}, f"{result.path}{place} is {here}, and {there} on one device."
    if examined.stuck_on:
        return {*examined.stuck_on}, "devices wait for each other forever."
    return {result.mesh for result in examined.wrong}, "some results differ."


def _number(x: Any) -> str:
    return str(x) if np.issubdtype(np.asarray(x).dtype, np.bool_) else f"{x:.6g}"
