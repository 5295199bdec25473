"""What `prove` and real devices say of an idiom."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

import shardwise as sw

from ..campaign import alike
from . import Idiom


def proved(idiom: Idiom, run: bool = False) -> Any:
    """Prove it, from its shapes alone unless it is `run`."""
    args = idiom.args if run else jax.eval_shape(lambda *args: args, *idiom.args)
    return sw.prove(idiom.step, *args, mesh=sw.mesh(idiom.mesh), reference=idiom.reference, run=run)


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
