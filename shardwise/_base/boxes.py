"""Partitioning metadata of Flax Linen: variables annotated with the mesh axes that split them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import jax


def boxes(variables: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the variables annotated with mesh axes: the path, and the axis name of each dimension.

    Annotations with logical names do not refer to a mesh and are left out.
    """
    meta, spmd = (sys.modules.get(f"flax.{name}") for name in ("core.meta", "linen.spmd"))
    if meta is None or spmd is None:
        return

    def names_axes(leaf: Any) -> bool:
        logical = isinstance(leaf, spmd.LogicallyPartitioned)
        return isinstance(leaf, meta.Partitioned) and not logical and any(leaf.names)

    for path, leaf in jax.tree_util.tree_leaves_with_path(variables, is_leaf=names_axes):
        if names_axes(leaf):
            yield jax.tree_util.keystr(path), leaf.names
