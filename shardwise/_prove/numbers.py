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

from .._check import Run, check, run_drawn, words
from .._errors import ShardwiseError
from .._mesh import AbstractMesh, resized
from .._simulate import Tracing
from .._static import Static

MANY = 1 << 21
"""Programs whose arguments have more elements than this are cut down before they are run."""

FEW = 64
"""Meshes of more devices than this are not run."""

TRIES = 2
"""So many sizes are tried before it is said that the program cannot be cut down."""


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The outcome of a run: which results are wrong, and a sentence."""

    run: bool = False
    wrong: frozenset[str] = frozenset()
    words: str = ""


def try_numbers(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    meshes: Sequence[AbstractMesh],
    reference: Any,
    decided: bool,
    options: dict[str, Any],
) -> Numbers:
    """Run the program on a small mesh, at its own sizes or at smaller ones.

    `decided`: the meaning refutes it by itself, so that it is only run as it is.
    """
    small = _small_mesh(meshes)
    if small is None or (decided and _elements(args) > MANY):
        return Numbers()
    reason = ""
    for own, note in _sizes(args):
        try:
            return _run(f, own, small, reference, note, options)
        except (ShardwiseError, TypeError, ValueError, AssertionError) as error:
            reason = reason or str(error).partition("\n")[0]
    return Numbers(words=f"The program could not be run on small numbers: {reason}")


def _small_mesh(meshes: Sequence[AbstractMesh]) -> AbstractMesh | None:
    """The smallest mesh asked for that has more than one device; two along each axis at most."""
    several = [mesh for mesh in meshes if math.prod(mesh.shape.values()) > 1]
    if not several:
        return None
    least = min(several, key=lambda mesh: math.prod(mesh.shape.values()))
    if math.prod(least.shape.values()) <= FEW:
        return least
    return resized(least, {name: min(size, 2) for name, size in least.shape.items()})


def _sizes(args: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """The arguments as they are if they are small enough; else cut down, and what was done."""
    count = _elements(args)
    if count <= MANY:
        yield args, ""
        return
    tries = 0
    for times in range(1, 24):
        smaller = jax.tree.map(lambda x: _cut_down(x, times), args)
        fewer = _elements(smaller)
        if fewer <= MANY // 4 and tries < TRIES:
            tries += 1
            yield smaller, f", with sizes cut down by up to 2^{times}"


def _elements(args: Any) -> int:
    return sum(math.prod(getattr(x, "shape", ())) for x in jax.tree.leaves(args))


def _cut_down(x: Any, times: int) -> Any:
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        return x
    shape = tuple(_halved(size, times) for size in x.shape)
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(shape, x.dtype)
    return x[tuple(slice(size) for size in shape)]


def _halved(size: int, times: int) -> int:
    for _ in range(times):
        if size % 4 or size <= 4:
            break  # what is left has to divide by two devices
        size //= 2
    return size


def _run(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    mesh: AbstractMesh,
    reference: Any,
    note: str,
    options: dict[str, Any],
) -> Numbers:
    verdict = check(f, *args, mesh=mesh, reference=reference, **options)
    where = f"By numbers, on {words(mesh)}{note}"
    # What is silenced is not to be told twice, but it is so.
    seen = [found for found in (*verdict.findings, *verdict.silenced) if found.certain]
    if not seen:
        return Numbers(True, frozenset(), f"{where}, every result is right.")
    wrong = frozenset(leaf for found in seen for leaf in (found.leaf, *found.likewise))
    static = Static.of(options["static_argnums"], options["static_argnames"])
    example = _example(f, args, mesh, wrong, (options["in_specs"], static))
    return Numbers(True, wrong, f"{where}: {example}")


def _example(
    f: Any, args: tuple[Any, ...], mesh: AbstractMesh, wrong: frozenset[str], options: Any
) -> str:
    """The element that is furthest off, as it is and as it is on one device."""
    ones = resized(mesh, dict.fromkeys(mesh.axis_names, 1))
    base, given = run_drawn(Tracing(f, ones, *options), args, 0)
    run = Run(Tracing(f, mesh, *options), given)
    rows = zip(run.paths, run.results(), base.results(), strict=True)
    for path, got, want in rows:
        if path in wrong and got.shape == want.shape and got.size:
            with np.errstate(all="ignore"):
                gap = np.abs(got.astype(np.float64) - want.astype(np.float64))
            at = np.unravel_index(int(np.nanargmax(gap)), got.shape) if got.shape else ()
            place = f"[{', '.join(map(str, map(int, at)))}]" if at else ""
            return f"{path}{place} is {got[at]:.6g}, and {want[at]:.6g} on one device."
    return "some results differ."
