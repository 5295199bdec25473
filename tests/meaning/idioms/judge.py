"""What `prove` and real devices say of an idiom."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import shardwise as sw

from ..campaign import alike
from . import Idiom

ITSELF = "proved against itself"
"""The status of an idiom that is proved, but not against its reference."""


def judged(idiom: Idiom) -> tuple[str, Any]:
    """Return the status of an idiom, and the proof; it is read from its shapes alone."""
    proof = _proof(idiom, idiom.reference)
    if proof.status == "unknown" and idiom.reference is not None:
        alone = _proof(idiom, None)
        if alone.status != "unknown":
            return (ITSELF if alone else alone.status), proof
    return proof.status, proof


def _proof(idiom: Idiom, reference: Any) -> Any:
    shapes = jax.eval_shape(lambda *args: args, *idiom.args)
    mesh = sw.mesh(idiom.mesh)
    return sw.prove(idiom.step, *shapes, mesh=mesh, reference=reference, run=False)


def differences(idiom: Idiom) -> list[str]:
    """Run it on real virtual devices, and return the results that are not what is expected."""
    pairs = zip(_leaves(idiom.real(idiom.mesh)), _leaves(idiom.expected()), strict=True)
    return [
        f"{jax.tree_util.keystr(path) or 'result'} is {got!r}, expected {want!r}"
        for (path, got), (_, want) in pairs
        if not alike(got, want)
    ]


def _leaves(tree: Any) -> list[tuple[Any, np.ndarray]]:
    return [(path, np.asarray(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
