"""Local variables of JAX's functions, read from the traceback of an error.

JAX's messages often omit the axis, mesh or function they are about, which the frames in the
traceback have in local variables. No other module depends on the names of those variables. Only
frames between our call and the error are given, and only those of JAX's functions are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from .._base.durable import COMPILERS
from .source_lines import is_collective, is_own, is_shard_map

COMPILERS.add("jax._src.compiler")  # the only module that calls XLA's compiler


@dataclasses.dataclass(frozen=True)
class CollectiveCall:
    """A call of a collective: its name in `jax.lax`, and its arguments."""

    name: str
    arguments: Mapping[str, Any]


def mapped_functions(frames: Iterable[FrameType]) -> Iterator[Callable[..., Any]]:
    """Yield the bodies of the `shard_map`s that an error passed through, the innermost last."""
    for frame in frames:
        body = frame.f_locals.get("f") if is_shard_map(_file(frame)) else None
        if callable(body):
            yield body


def collective_called(frames: Iterable[FrameType]) -> CollectiveCall | None:
    """Return the outermost collective that was called."""
    for frame in frames:
        if is_collective(_file(frame)) and "axis_name" in frame.f_locals:
            return CollectiveCall(frame.f_code.co_name, frame.f_locals)
    return None


def groups_given(frame: FrameType) -> Any:
    """Return the `axis_index_groups` passed to a function of JAX, if any."""
    return frame.f_locals.get("axis_index_groups") if is_own(_file(frame)) else None


def vmap_axes(frames: Iterable[FrameType]) -> set[Any]:
    """Return the names of the axes of the `vmap`s that an error passed through."""
    calls = (frame for frame in frames if frame.f_code.co_name == "vmap_f")
    return {frame.f_locals.get("axis_name") for frame in calls if is_own(_file(frame))}


def axis_named(frames: Iterable[FrameType]) -> str | None:
    """Return the axis that the innermost function of JAX was called with."""
    axis = None
    for frame in frames:
        for local in ("axis_name", "axes", "axis_names") if is_own(_file(frame)) else ():
            names = frame.f_locals.get(local)
            for name in names if isinstance(names, tuple | list) else (names,):
                axis = name if isinstance(name, str) else axis
    return axis


def mesh_named(frames: Iterable[FrameType]) -> Mesh | AbstractMesh | None:
    """Return the mesh of the innermost function of JAX that has one."""
    meshes = [frame.f_locals.get("mesh") for frame in frames if is_own(_file(frame))]
    return next((m for m in reversed(meshes) if isinstance(m, Mesh | AbstractMesh)), None)


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename
