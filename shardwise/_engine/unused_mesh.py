"""Warn about a mesh that has no effect on a program."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax

from .._base.errors import explain_error, name_of, warn
from .._mesh import AbstractMesh
from .._program import is_sharded


def warn_if_unused(
    f: Callable[..., Any], mesh: AbstractMesh, program: Any, without: Callable[[], Any]
) -> None:
    """Warn if a mesh has no effect on a program: it is the same `without` it.

    Shardings are for the compiler, and a program may use the mesh around it.
    """
    text = str(program.jaxpr)
    if mesh.size == 1 or is_sharded(program.body) or _USES_A_MESH.search(text):
        return
    if jax.sharding.get_abstract_mesh().size:
        return
    try:
        unchanged = str(without().jaxpr) == text
    except Exception:  # it needs the mesh
        return
    if unchanged:
        warn(
            explain_error(
                f"there is no shard_map in it, and the mesh {dict(mesh.shape)} has no effect",
                where=f"sw.simulate({name_of(f)})",
                rule="simulate runs the body of a jax.shard_map for each device.",
                remedy="call jax.shard_map(body, mesh=mesh, in_specs=..., out_specs=...) in it. If "
                "it does so only for a Mesh: a virtual mesh is a jax.sharding.AbstractMesh.",
            )
        )


_USES_A_MESH = re.compile(
    r"Sharding|sharding_constraint|reshard|mesh_cast|PartitionSpec|\bP\(|sharding=(?!None)"
    r"|shardwise_simulate"
)
"""Text in a jaxpr that refers to sharding or to a nested simulated call."""
