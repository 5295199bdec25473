"""What small numbers say of a program that is not proved."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._check import check, words
from .._errors import ShardwiseError
from .._mesh import AbstractMesh

MANY = 1 << 22
"""Programs whose arguments have more elements than this are not run as they are."""


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
) -> Numbers:
    """Run the program on the smallest mesh that has the axes, if it is small enough."""
    elements = sum(math.prod(getattr(x, "shape", ())) for x in jax.tree.leaves(args))
    if elements > MANY:
        return Numbers(words="The program was not run on numbers: its arguments are too large.")
    small = min((m for m in meshes if _devices(m) > 1), key=_devices, default=None)
    if small is None or _devices(small) > 64:
        return Numbers(words="The program was not run on numbers: the mesh is too large.")
    try:
        verdict = check(f, *args, mesh=small, reference=reference)
    except (ShardwiseError, TypeError, ValueError) as error:
        first = str(error).partition("\n")[0]
        return Numbers(words=f"The program could not be run on numbers: {first}")
    wrong = frozenset(found.leaf for found in verdict.findings if found.certain)
    if verdict.ok:
        return Numbers(True, wrong, f"By numbers, on {words(small)}, every result is right.")
    return Numbers(True, wrong, f"By numbers, on {words(small)}: {_counter(verdict)}")


def _counter(verdict: Any) -> str:
    return "; ".join(f.message for f in verdict.findings if f.certain)


def _devices(mesh: AbstractMesh) -> int:
    return math.prod(mesh.shape.values())
