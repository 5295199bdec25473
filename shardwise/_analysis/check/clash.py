"""Explain shape errors after a `shard_map` whose `out_specs` change the shape of a result."""

from __future__ import annotations

from typing import Any

from ... import _jax
from ..._base.errors import ShardingError, text_of
from ..._engine.tracing import Tracing
from ..._mesh import AbstractMesh, words
from ..._program.where import choose
from ..lift import Run

CALL = "_shardwise_call"
"""The attribute of such an error with the number of the `shard_map`."""


def run_on(tracing: Tracing, args: tuple[Any, ...], base: Tracing) -> Run:
    """Trace a program on a mesh; if it fails on shapes, raise an error that names `out_specs`.

    A program that runs on one device and fails on a mesh with incompatible shapes may fail far from
    the cause, in a library.
    """
    try:
        return Run(tracing, args)
    except (TypeError, ValueError) as error:
        maps = enumerate(zip(base.mapped, tracing.mapped, strict=False))
        for call, (base_map, mesh_map) in maps:
            pairs = enumerate(zip(base_map.shapes, mesh_map.shapes, strict=False))
            for number, (whole, part) in pairs:
                if tracing.mesh_around and whole != part and len(whole) == len(part):
                    line = str(choose([*_jax.user_frames(mesh_map.source)]))
                    clash = _clash(error, tracing.mesh_around, line, number, whole, part)
                    vars(clash)[CALL] = call
                    raise clash from error
        raise


def _clash(
    error: Exception,
    mesh: AbstractMesh,
    where: str,
    number: int,
    whole: tuple[int, ...],
    part: tuple[int, ...],
) -> ShardingError:
    first = text_of(error).splitlines()[0]
    return ShardingError(
        f"on {words(mesh)}, result {number} of this shard_map has shape {part}, and {whole} on "
        f"one device; behind it JAX raises: {first}",
        where=where,
        rule="out_specs say how the parts of a result are put together. Along a dimension that "
        "names no axis, the part of one device is taken for the whole.",
        remedy=_remedy(mesh, whole, part),
    )


def _remedy(mesh: AbstractMesh, whole: tuple[int, ...], part: tuple[int, ...]) -> str:
    """Suggest a spec: the axis whose size fits, at the dimension that differs."""
    for dim, (large, small) in enumerate(zip(whole, part, strict=True)):
        names = [name for name, size in mesh.shape.items() if small * size == large]
        if large > small and names:
            spec = ", ".join(["None"] * dim + [repr(names[0])])
            return f"is this result split over {names[0]!r}? Then declare it so: P({spec})."
    return "compare the specs of this result with those of the argument that it belongs to."
