"""The layout of a batch on a mesh: the data axis, and padding.

A batch is split into `devices * accumulate` parts of equal length. A batch that does not divide
evenly is padded with copies of its last row: a copy has a finite loss and gradient wherever the row
itself has, so that no NaN can come from rows that are masked with `where`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from .... import _jax
from ...._base.errors import ShardingError, a_type, did_you_mean, listed
from ...._base.numbers import changes, dtype_remedy, to_device_dtype
from ...._mesh import MeshLike, is_count, one_mesh
from ...hosts.find import require_joined


@dataclass(frozen=True)
class BatchLayout:
    """A mesh, its axis that splits the rows, and the number of parts per device."""

    mesh: Mesh | AbstractMesh
    axis: str
    accumulate: int

    @property
    def devices(self) -> int:
        """The number of devices along the data axis."""
        return self.mesh.shape[self.axis]

    @property
    def parts(self) -> int:
        """The number of parts of equal length of a batch."""
        return self.devices * self.accumulate

    @property
    def others(self) -> frozenset[str]:
        """The other axes, along which everything is replicated."""
        return frozenset(n for n, size in self.mesh.shape.items() if n != self.axis and size > 1)

    @property
    def shared(self) -> bool:
        """Whether the devices belong to several processes."""
        return (
            isinstance(self.mesh, Mesh)
            and len({device.process_index for device in self.mesh.devices.flat}) > 1
        )

    @property
    def virtual(self) -> bool:
        """Whether the mesh is virtual, without devices."""
        return isinstance(self.mesh, AbstractMesh)

    def __str__(self) -> str:
        suffix = f", each share in {self.accumulate}" if self.accumulate > 1 else ""
        return f"{self.devices} devices along {self.axis!r}{suffix}"


def lay_out(mesh: MeshLike | None, axis: str | None, accumulate: int) -> BatchLayout:
    """Return the layout for the arguments of a step; without a mesh, all devices of all
    processes."""
    if mesh is None:
        require_joined("data_parallel")
        mesh = _whole_mesh(axis if isinstance(axis, str) else "data")
    mesh = one_mesh(mesh)
    names = list(mesh.axis_names)
    if axis is not None and not (isinstance(axis, str) and axis in names):
        raise ShardingError(
            f"axis {axis!r} is not an axis of the mesh, {names}",
            where="argument 'axis'",
            rule="The rows of a batch are split over one axis of the mesh.",
            remedy=did_you_mean(str(axis), names, 0.5) or f"axis={names[0]!r}",
        )
    if not is_count(accumulate):
        raise ShardingError(
            f"accumulate is {accumulate!r}",
            where="argument 'accumulate'",
            rule="Each device splits its rows into a positive number of parts.",
            remedy="accumulate=1 does not split them.",
        )
    return BatchLayout(mesh, axis or names[0], int(accumulate))


@functools.cache
def _whole_mesh(axis: str) -> Mesh:
    devices = jax.devices()
    return Mesh(np.array(devices), (axis,), axis_types=(AxisType.Auto,))


def count_rows(batch: Any) -> int:
    """Return the number of rows of a batch, the same for all of its leaves."""
    shapes: list[tuple[int, ...]]
    shapes = [leaf.shape if _is_rows(leaf) else () for leaf in jax.tree.leaves(batch)]
    if shapes and all(shapes):
        rows = shapes[0][0]
        if rows and all(shape[0] == rows for shape in shapes):
            return rows
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    _refuse_leaves(leaves)
    lengths = {
        "batch" + jax.tree_util.keystr(path): np.shape(leaf)[0] if np.ndim(leaf) else None
        for path, leaf in leaves
    }
    lines = [
        f"{name}: {'a scalar' if length is None else f'{length} rows'}"
        for name, length in lengths.items()
    ]
    problem = f"its leaves differ in length:{listed(lines)}"
    remedy = (
        "a value that changes from step to step goes into the batch once per row, "
        "np.full(rows, value); a constant may be bound to the loss, functools.partial(loss, ...), "
        "and is read when the step is compiled."
    )
    if lengths and None not in lengths.values():
        remedy = "give all leaves of a batch the same number of rows."
        if any(_in_list(path) for path, _ in leaves):
            remedy += " A list of rows becomes one leaf with np.stack(rows)."
    if not lengths or set(lengths.values()) == {0}:
        problem = "it has no rows" if lengths else "it has no leaves"
        remedy = "skip empty batches; check the path or the filter of the data."
    raise ShardingError(
        problem,
        where="the batch",
        rule="Every leaf of a batch has one row per example, at least one, "
        "along its first dimension.",
        remedy=remedy,
    )


def _refuse_leaves(leaves: list[tuple[Any, Any]]) -> None:
    for path, leaf in leaves:
        if _is_rows(leaf):
            continue
        if isinstance(leaf, bool | int | float | complex) and not _in_list(path):
            continue
        kind = a_type(leaf)
        remedy = "np.asarray(...) of a list of rows; encode text as numbers first."
        dtype = getattr(leaf, "dtype", None)
        if isinstance(dtype, np.dtype):
            kind, remedy = f"an array of dtype {dtype}", dtype_remedy(dtype)
        if isinstance(leaf, np.ma.MaskedArray):
            kind = "a MaskedArray"
            remedy = (
                "x.filled(0), with ~np.ma.getmaskarray(x) as another leaf of the batch, which the "
                "loss uses as weights: JAX has no masked arrays."
            )
        raise ShardingError(
            f"batch{jax.tree_util.keystr(path)} is {kind}",
            where="the batch",
            rule="The leaves of a batch are arrays of numbers.",
            remedy=remedy,
        )


def _is_rows(leaf: Any) -> bool:
    masked = isinstance(leaf, np.ma.MaskedArray)
    return hasattr(leaf, "shape") and not masked and not _is_unplaceable(leaf.dtype)


def _is_unplaceable(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and bool(dtype_remedy(dtype))


def _in_list(path: Any) -> bool:
    """Return whether a leaf is an entry of a list: the batch is a list of rows."""
    return bool(path) and isinstance(path[-1], jax.tree_util.SequenceKey)


def to_device_dtypes(batch: Any) -> Any:
    """Return the batch with device dtypes; raise for a number that does not fit."""
    if not any(map(changes, jax.tree.leaves(batch))):
        return batch

    def numbers(path: Any, leaf: Any) -> Any:
        return (
            to_device_dtype(leaf, f"batch{jax.tree_util.keystr(path)}") if changes(leaf) else leaf
        )

    return jax.tree_util.tree_map_with_path(numbers, batch)


def fill_up(batch: Any, rows: int, parts: int) -> tuple[Any, bool]:
    """Return the batch padded to a multiple of `parts` rows, and whether it has padding."""
    length = -(-rows // parts) * parts
    if length == rows:
        return batch, False
    index = np.minimum(np.arange(length), rows - 1)

    def fill(leaf: Any) -> Any:
        if is_shape(leaf):
            return jax.ShapeDtypeStruct((length, *leaf.shape[1:]), leaf.dtype)
        return _indexable(leaf)[index]

    return jax.tree.map(fill, batch), True


def is_shape(leaf: Any) -> bool:
    """Return whether this is a shape without values."""
    return isinstance(leaf, jax.ShapeDtypeStruct)


def _indexable(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf
    if not isinstance(leaf, jax.Array):
        return jnp.asarray(leaf)
    sharding = None if _jax.is_traced(leaf) else leaf.sharding
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        return leaf
    # An array with Explicit axes cannot be indexed without an out_sharding.
    names = sharding.mesh.axis_names
    mesh = Mesh(sharding.mesh.devices, names, axis_types=(AxisType.Auto,) * len(names))
    return jax.device_put(leaf, NamedSharding(mesh, sharding.spec))
