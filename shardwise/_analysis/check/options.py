"""Validate the options of `check` and expand its meshes before anything runs."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..._base.errors import ArgumentError, ShardingError, ShardwiseError
from ..._mesh import AbstractMesh, Mesh, MeshLike, abstract
from ..._mesh import mesh as make_mesh

Sizes = Mapping[str, int | str | Sequence[int]]
"""Axis names, each with a size, the sizes to try, or a letter for every size that divides."""


def validate(f: Any, rtol: Any, atol: Any, seed: Any) -> None:
    """Raise an error for invalid options."""
    if not callable(f):
        raise refused(
            f"f is {f!r}",
            "check takes a function first, then its arguments.",
            'sw.check(step, params, batch, mesh={"data": [1, 2, 4, 8]})',
        )
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if tolerance is not None and not _is_tolerance(tolerance):
            raise refused(
                f"{name} is {tolerance!r}",
                "A tolerance is a number, 0 or more, and finite.",
                f"{name}=1e-3, or leave it out: programs are compared in float64.",
            )
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 1 << 32:
        raise refused(
            f"seed is {seed!r}",
            "The seed of the drawn values is an integer from 0 to 2**32 - 1.",
            "seed=0",
        )


def _is_tolerance(given: Any) -> bool:
    if isinstance(given, str | bytes | bool | np.bool_):
        return False
    try:
        return math.isfinite(float(given)) and float(given) >= 0
    except (TypeError, ValueError, OverflowError):
        return False


def refused(
    what: str,
    rule: str,
    remedy: str,
    kind: type[ShardwiseError] = ShardwiseError,
    where: str = "sw.check",
) -> ShardwiseError:
    """Return an error about an option."""
    return kind(what, where=where, rule=rule, remedy=remedy)


Meshes = Sizes | Mesh | AbstractMesh | Sequence[MeshLike]


def wanted_meshes(given: Meshes | None, called: str, args: Sequence[Any]) -> list[AbstractMesh]:
    """Return the meshes of a call; without `mesh=`, raise. `args` are the function's arguments."""
    if given is not None:
        return expand(given, called)
    misplaced = any(isinstance(arg, Mesh | AbstractMesh) for arg in args)
    raise refused(
        "the mesh is passed by position" if misplaced else "mesh= is missing",
        f"{called} compares a program on a mesh with one device, also a program that has a mesh of "
        "its own.",
        f'sw.{called}(f, *args, mesh={{"data": [1, 2, 4, 8]}}), where f takes the mesh as a '
        "keyword or uses the one around it.",
        ArgumentError,
        f"sw.{called}",
    )


def expand(sizes: Meshes, called: str = "check") -> list[AbstractMesh]:
    """Return all meshes of a description, each once, the smallest first."""
    refuse = functools.partial(refused, kind=ShardingError, where=f"sw.{called}")
    if isinstance(sizes, Mesh | AbstractMesh):
        return [abstract(sizes)]
    if isinstance(sizes, list | tuple) and sizes and all(map(_is_mesh, sizes)):
        meshes = [mesh for item in sizes for mesh in expand(item, called)]
        if len({(mesh.axis_names, mesh.axis_types) for mesh in meshes}) == 1:
            return _by_size(meshes)
    if not isinstance(sizes, Mapping) or not sizes:
        rule = f"{called} needs the axes and the sizes to try."
        raise refuse(f"mesh is {sizes!r}", rule, 'mesh={"data": [1, 2, 4, 8]}')
    columns = []
    for name, value in sizes.items():
        column = [value] if isinstance(value, str) or not isinstance(value, Sequence) else [*value]
        if not column:
            rule = "Each axis has at least one size to try."
            raise refuse(f"axis {name!r} has no sizes", rule, f'mesh={{"{name}": [1, 2, 4, 8]}}')
        columns.append(column)
    rows = itertools.product(*columns)
    return _by_size(make_mesh(dict(zip(sizes, row, strict=True))) for row in rows)


def _by_size(meshes: Iterable[AbstractMesh]) -> list[AbstractMesh]:
    return sorted(dict.fromkeys(meshes), key=lambda mesh: mesh.size)


def _is_mesh(given: Any) -> bool:
    return isinstance(given, Mesh | AbstractMesh | Mapping)
