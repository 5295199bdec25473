"""The arrays of a state in a checkpoint: by name, on the host, each with a checksum."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ...._base.durable import checksum
from ..step.feed import with_keys, without_keys


def by_name(arrays: Any) -> dict[str, Any]:
    """Return the arrays of a tree by their path; keys of `jax.random` as their integers."""
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    if len(set(names)) < len(names):  # {"a.b": x, "a": {"b": y}}
        names = [jax.tree_util.keystr(path) for path, _ in leaves]
    return {name: without_keys(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}


def types_of(named: dict[str, Any]) -> dict[str, str]:
    """Return dtype and shape of each array, as text."""
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in named.items()}


def sums_of(named: dict[str, Any]) -> dict[str, str]:
    """Return the checksum of each array."""
    return {name: sum_of(array) for name, array in named.items()}


def sum_of(array: Any) -> str:
    """Return the checksum of the bytes of an array."""
    return f"{checksum(np.ascontiguousarray(array).reshape(-1).view(np.uint8)):08x}"


def on_host(named: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return copies of the values on the host."""
    fetched = jax.device_get(named)
    return {n: x.copy() if _shares_memory(named[n]) else x for n, x in fetched.items()}


def rebuild(like: Any, names: list[str], stored: dict[str, Any]) -> Any:
    """Return a tree like another one, of arrays by name; empty arrays are not stored."""
    leaves, structure = jax.tree.flatten(like)
    new = [
        with_keys(leaf, stored[name]) if leaf.size else leaf
        for name, leaf in zip(names, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, new)


def _shares_memory(leaf: Any) -> bool:
    """Return whether a host array would share memory, which the next step may donate."""
    return not isinstance(leaf, jax.Array) or any(d.platform == "cpu" for d in leaf.devices())
