"""What small numbers say of a program that is not proved.

A program whose arguments are too large to run is run with every dimension cut down alike: each size
is halved as often as it divides, up to a common number of times, so that equal sizes stay equal and
ratios stay what they are. Arguments given as shapes are drawn.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from .._check import Examined, Finding, examine, wide, words
from .._errors import ShardwiseError, text_of
from .._jax.types import unplaced
from .._mesh import AbstractMesh, resized

MANY = 1 << 21
"""Programs whose arguments have more elements than this are cut down before they are run."""

FEW = 64
"""Meshes of more devices than this are not run."""

TRIES = 2
"""So many sizes are tried before it is said that the program cannot be cut down."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The outcome of a run: which results are wrong on which mesh, why, and a sentence."""

    run: bool = False
    exact: bool = False
    """Whether it was run as it is asked about: on these meshes, at these sizes."""
    wrong: frozenset[tuple[str, str]] = frozenset()
    """Pairs of a mesh and a result."""
    stuck_on: frozenset[str] = frozenset()
    """The meshes on which devices wait for each other forever."""
    findings: tuple[Finding, ...] = ()
    """What `check` says is certain."""
    words: str = ""

    def refutes(self, mesh: str, path: str) -> bool:
        """Whether these numbers are a counter-example to a result on a mesh."""
        return self.exact and (mesh in self.stuck_on or (mesh, path) in self.wrong)

    def agree_on(self, path: str) -> bool:
        """Whether a result was run and is right wherever it was."""
        return self.run and all(path != own for _, own in self.wrong)

    def cause_of(self, mesh: str, path: str) -> Finding | None:
        """Why a result is wrong, as `check` says it."""
        if mesh in self.stuck_on:
            return next((one for one in self.findings if one.code == "SW301"), None)
        own = (one for one in self.findings if path in (one.leaf, *one.likewise))
        return next(own, None)


def try_numbers(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    meshes: Sequence[AbstractMesh],
    reference: Any,
    decided: bool,
    options: tuple[Any, Any],
) -> Numbers:
    """Run the program on small meshes, at its own sizes or at smaller ones.

    `decided`: the meaning refutes it by itself, so that it is only run as it is.
    """
    small = _small_meshes(meshes)
    if not small or (decided and _elements(args) > MANY):
        return Numbers()
    reason = ""
    for times, note in _sizes(args):
        try:
            own = jax.tree.map(lambda x: _cut_down(x, times), args) if times else args
        except Exception as error:  # A class of the user's may insist on the sizes of its parts.
            reason = reason or text_of(error).partition("\n")[0] or type(error).__name__
            continue
        try:
            examined = examine(f, own, small, reference, options)
        except (ShardwiseError, TypeError, ValueError, AssertionError) as error:
            reason = reason or text_of(error).partition("\n")[0]
        else:
            return _told(examined, small, note, exact=not note and small[0] in meshes)
    return Numbers(words=f"The program could not be run on small numbers: {reason}")


def _small_meshes(meshes: Sequence[AbstractMesh]) -> list[AbstractMesh]:
    """The smallest and the largest mesh that can be run; two along each axis if none can.

    What is wrong on many devices may be right on two, and on many there may be a single element on
    each, so that nothing shows.
    """
    sized = sorted(dict.fromkeys(meshes), key=_devices)
    few = [mesh for mesh in sized if _devices(mesh) <= FEW]
    if few:
        return list(dict.fromkeys([few[0], few[-1]]))
    least = sized[0]
    return [resized(least, {name: min(size, 2) for name, size in least.shape.items()})]


def _devices(mesh: AbstractMesh) -> int:
    return math.prod(mesh.shape.values())


def _sizes(args: tuple[Any, ...]) -> Iterator[tuple[int, str]]:
    """How often to halve the sizes of the arguments until they are small enough, in words too."""
    arrays = jax.tree.leaves(args)
    if _elements(arrays) <= MANY:
        yield 0, ""
        return
    tries = 0
    for times in range(1, 24):
        fewer = _elements([_cut_down(x, times) for x in arrays])
        if fewer <= MANY // 4 and tries < TRIES:
            tries += 1
            yield times, f", with sizes cut down by up to 2^{times}"


def _elements(args: Any) -> int:
    return sum(math.prod(getattr(x, "shape", ())) for x in jax.tree.leaves(args))


def _cut_down(x: Any, times: int) -> Any:
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        return x
    shape = tuple(_halved(size, times) for size in x.shape)
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(shape, x.dtype)
    return unplaced(x)[tuple(slice(size) for size in shape)]


def _halved(size: int, times: int) -> int:
    for _ in range(times):
        if size % 4 or size <= 4:
            break  # what is left has to divide by two devices
        size //= 2
    return size


def _told(examined: Examined, meshes: Sequence[AbstractMesh], note: str, exact: bool) -> Numbers:
    verdict = examined.verdict
    run = [words(mesh) for mesh in meshes]
    # What is silenced is not to be told twice, but it is so.
    seen = [found for found in (*verdict.findings, *verdict.silenced) if found.certain]
    if not seen:
        return Numbers(True, exact, words=f"{_where(run, note)}, every result is right.")
    wrong = frozenset((one.mesh, one.path) for one in examined.wrong)
    stuck = frozenset(examined.stuck_on)
    so_on, example = _example(examined)
    said = f"{_where([mesh for mesh in run if mesh in so_on] or run, note)}: {example}"
    return Numbers(True, exact, wrong, stuck, tuple(seen), said)


def _where(meshes: Sequence[str], note: str) -> str:
    return f"By numbers, on {', '.join(meshes)}{note}"


def _example(examined: Examined) -> tuple[set[str], str]:
    """The element that is furthest off, as it is and as it is on one device; and where it is so."""
    for one in examined.wrong:
        if not one.structure and one.same_type and one.got.size:
            got, want = one.got, one.want.value
            with np.errstate(all="ignore"):
                gap = np.abs(wide(got) - wide(want))
            gap = np.where(np.isnan(gap), np.inf, gap)
            at = np.unravel_index(int(np.argmax(gap)), got.shape) if got.shape else ()
            place = f"[{', '.join(map(str, map(int, at)))}]" if at else ""
            here, there = _number(got[at]), _number(want[at])
            return {one.mesh}, f"{one.path}{place} is {here}, and {there} on one device."
    if examined.stuck_on:
        return {*examined.stuck_on}, "devices wait for each other forever."
    return {one.mesh for one in examined.wrong}, "some results differ."


def _number(x: Any) -> str:
    return str(x) if np.issubdtype(np.asarray(x).dtype, np.bool_) else f"{x:.6g}"
