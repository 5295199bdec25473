"""The placement of a step's arrays: device_put, copies, donation.

A step puts its arguments on its mesh, whatever the ambient mesh and the placement of the arrays.
Arrays that are already there are not touched.

Checking many small arrays in Python can take longer than the step. So a step first checks whether
they are *settled*: the outputs of the previous step, compared by identity. Only otherwise does it
check each array.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext, suppress
from operator import call, is_
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from .... import _jax
from ...._base.errors import ShardingError
from .feed import spread
from .layout import is_shape


def put(arrays: Any, mesh: Mesh | AbstractMesh, spec: P) -> Any:
    """Put arrays on the devices of a mesh, unless they are there already.

    Args:
        arrays: Arrays of any kind, or shapes that stand for them.
        mesh: The mesh; a virtual one runs on the device where the arrays are.
        spec: How they are split.
    """
    if isinstance(mesh, AbstractMesh):
        return jax.tree.map(_together, arrays)
    # Asking first is ten times as fast as device_put, which a step would call on every array.
    sharding = NamedSharding(mesh, spec)
    if any(map(is_shape, jax.tree.leaves(arrays))):
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arrays
        )
    if all(_is_on(leaf, sharding) for leaf in jax.tree.leaves(arrays)):
        return arrays
    if not sharding.is_fully_addressable:
        return spread(arrays, sharding)
    return jax.device_put(arrays, sharding)


def _is_on(leaf: Any, sharding: NamedSharding) -> bool:
    return isinstance(leaf, jax.Array) and not _jax.is_traced(leaf) and leaf.sharding == sharding


def put_rows(batch: Any, mesh: Mesh | AbstractMesh, spec: P) -> Any:
    """Put a batch on the devices of a mesh, or leave that to `jit` and its `in_shardings`.

    `jit` transfers uncommitted arrays faster than `device_put` does; it raises for committed arrays
    on other devices.
    """
    left_alone = isinstance(mesh, Mesh) and AxisType.Explicit not in mesh.axis_types
    if left_alone and all(map(_is_free, jax.tree.leaves(batch))):
        return batch
    return put(batch, mesh, spec)


def _is_free(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return True
    return isinstance(leaf, jax.Array) and not _jax.is_traced(leaf) and not leaf.committed


class Outputs:
    """Weak references to the outputs of the previous step."""

    def __init__(self) -> None:
        self._refs: list[weakref.ref[Any]] = []

    def remember(self, leaves: list[Any]) -> None:
        """Record the outputs of a step."""
        self._refs = list(map(weakref.ref, leaves))

    def are(self, leaves: list[Any]) -> bool:
        """Return whether these are exactly the recorded arrays, in order, and not deleted."""
        return (
            len(leaves) == len(self._refs)
            and all(map(is_, leaves, map(call, self._refs)))
            and not (leaves and leaves[0].is_deleted())
        )

    def donatable(self, arrays: Any) -> Any:
        """Return the arrays, with copies of those that are not outputs of a step."""
        output_ids = set(map(id, map(call, self._refs)))
        return jax.tree.map(lambda x: x if id(x) in output_ids else copied(x), arrays)


def _together(leaf: Any) -> Any:
    """Return an array on one device, for a step on a virtual mesh."""
    if is_shape(leaf):
        return leaf
    if not isinstance(leaf, jax.Array):
        return jnp.asarray(leaf)
    if _jax.is_traced(leaf) or isinstance(leaf.sharding, SingleDeviceSharding):
        return leaf
    kinds = getattr(getattr(leaf.sharding, "mesh", None), "axis_types", ())
    if len(leaf.sharding.device_set) == 1 and AxisType.Explicit not in kinds:
        return leaf
    # With just the device instead of a sharding, the type of the array would keep the mesh.
    first = min(leaf.sharding.device_set, key=lambda device: device.id)
    return jax.device_put(leaf, SingleDeviceSharding(first))


def copied(arrays: Any) -> Any:
    """Return copies of arrays, which may be donated."""
    return jax.tree.map(lambda x: jnp.array(x, copy=True), arrays)


def without_duplicates(arrays: Any) -> Any:
    """Return the arrays with duplicates copied: memory can be donated only once."""
    leaves, structure = jax.tree.flatten(arrays)
    if len(set(map(id, leaves))) == len(leaves):
        return arrays
    visited: set[int] = set()

    def unique(leaf: Any) -> Any:
        duplicate = id(leaf) in visited
        visited.add(id(leaf))
        return copied(leaf) if duplicate else leaf

    return jax.tree.unflatten(structure, [unique(leaf) for leaf in leaves])


def refuse_deleted(leaves: list[Any], where: str, remedy: str) -> None:
    """Raise if an array was donated."""
    for leaf in leaves:
        if isinstance(leaf, jax.Array) and not _jax.is_traced(leaf) and leaf.is_deleted():
            raise ShardingError(
                "its arrays are deleted: an earlier step has donated their memory to its result",
                where=where,
                rule="A step donates its state; jax.tree.map(jnp.copy, ...) makes copies to keep.",
                remedy=f"{remedy}; donate=False keeps everything.",
            )


def no_mesh() -> Any:
    """Return a context without a mesh: a step ignores the mesh that the caller has set."""
    if jax.sharding.get_abstract_mesh().empty:
        return nullcontext()
    try:
        return jax.set_mesh(None)
    except ValueError:  # inside jit, where only the abstract one is known
        return jax.sharding.use_abstract_mesh(AbstractMesh((), ()))


def on_mesh(mesh: Mesh | AbstractMesh) -> Any:
    """Return a context for code outside the step; Explicit axes have to be set as the mesh."""
    if isinstance(mesh, Mesh) and AxisType.Explicit in mesh.axis_types:
        with suppress(ValueError):  # inside jit it cannot be set
            return jax.set_mesh(mesh)
    return no_mesh()
