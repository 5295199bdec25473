"""The verdict on a program without `shard_map`, which is not run: the compiler partitions it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax

from ..._base.errors import name_of, noting
from ..._engine.tracing import Traced, Tracing
from ..._mesh import AbstractMesh, one_device, words
from ..._program import is_sharded
from ..faults import UnusedAxis, place_of, split_silenced
from .verdict import Verdict


def verdict_unsharded(
    first: Tracing, args: tuple[Any, ...], meshes: Sequence[AbstractMesh]
) -> Verdict | None:
    """Return the verdict if the program is the same on all meshes, but for its shardings.

    `first` traces it on one device.
    """
    if all(mesh.size == 1 for mesh in meshes):
        return None
    with jax.default_matmul_precision("highest"):
        with noting(f"tracing on {words(one_device(meshes[0]))}"):
            base = first(args, {})
        results = base.result_paths
        if not results or is_sharded(base.program.body):
            return None
        others = (Tracing(first.f, mesh, first.in_specs, first.static) for mesh in meshes)
        try:
            programs = [base, *(tracing(args, {}) for tracing in others)]
        except Exception:  # running it raises the same error, explained
            return None
    if any(is_sharded(traced.program.body) for traced in programs):
        return None
    if len(set(map(_without_shardings, programs))) > 1:
        return None
    findings, silenced = split_silenced([UnusedAxis.not_sharded()], place_of(first.f))
    name = name_of(first.f)
    return Verdict(findings, tuple(map(words, meshes)), len(results), name, silenced=silenced)


def _without_shardings(traced: Traced) -> str:
    return _SHARDING.sub("", str(traced.program.jaxpr))


_SHARDING = re.compile(r"\w*(?:Sharding|Mesh)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
"""A sharding or a mesh in the text of a jaxpr."""
