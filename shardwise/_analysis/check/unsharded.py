"""The verdict on a program without `shard_map`, which is not run: the compiler partitions it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..._base.errors import name_of, noting
from ..._engine.static import Static
from ..._engine.tracing import Traced, Tracing
from ..._mesh import AbstractMesh, one_device, words
from ..._program import is_sharded
from ..faults import UnusedAxis
from .silence import place_of, split_silenced
from .verdict import Verdict


def verdict_unsharded(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    meshes: Sequence[AbstractMesh],
    options: tuple[Any, Static],
) -> Verdict | None:
    """Return the verdict if the program is the same on all meshes, but for its shardings."""
    if all(mesh.size == 1 for mesh in meshes):
        return None
    ones = one_device(meshes[0])
    with jax.default_matmul_precision("highest"):
        with noting(f"tracing on {words(ones)}"):
            first = Tracing(f, ones, *options)(args, {})
        results = first.result_paths
        if not results or is_sharded(first.program.body):
            return None
        try:
            programs = [first, *(Tracing(f, mesh, *options)(args, {}) for mesh in meshes)]
        except Exception:  # running it raises the same error, explained
            return None
    if any(is_sharded(traced.program.body) for traced in programs):
        return None
    if len(set(map(_without_shardings, programs))) > 1:
        return None
    findings, silenced = split_silenced([UnusedAxis.not_sharded()], place_of(f))
    return Verdict(findings, tuple(map(words, meshes)), len(results), name_of(f), silenced=silenced)


def _without_shardings(traced: Traced) -> str:
    return _SHARDING.sub("", str(traced.program.jaxpr))


_SHARDING = re.compile(r"\w*(?:Sharding|Mesh)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
"""A sharding or a mesh in the text of a jaxpr."""
