"""A value on all devices at once.

`array` has one extra dimension for each axis the value differs over, at the position in `dims`. A
value that is the same everywhere is stored once, without an extra dimension. The position of an
extra dimension does not matter, so an input split along its last dimension is reshaped, not
transposed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._jax.shapes import ordered, reshaped
from ..._mesh import Axis, Placement


@dataclasses.dataclass(frozen=True)
class StackedValue:
    """An array, and which of its dimensions run along a mesh axis."""

    array: Any
    dims: Mapping[Axis, int] = dataclasses.field(default_factory=dict)

    def at(self, axis: Axis, index: Any) -> StackedValue:
        """Return the value at one coordinate."""
        if axis not in self.dims:
            return self
        array = lax.dynamic_index_in_dim(self.array, index, self.dims[axis], keepdims=False)
        return StackedValue(array, self.dims_without(axis))

    def block(self, axis: Axis, start: Any, size: int) -> Any:
        """Return the arrays of `size` coordinates from `start` on; the dimension stays in place."""
        return lax.dynamic_slice_in_dim(self.array, start, size, self.dims[axis])

    def dims_without(self, axis: Axis) -> dict[Axis, int]:
        """Return the dimensions of the other axes once this one is removed."""
        removed = self.dims[axis]
        return {other: d - (d > removed) for other, d in self.dims.items() if other != axis}

    def spread(self, axes: Sequence[Axis]) -> Any:
        """Return the array with exactly these axes in front, in this order, repeated where
        necessary."""
        missing = [axis for axis in axes if axis not in self.dims]
        array = self.array
        if missing:
            array = lax.broadcast(array, [axis.size for axis in missing])
        position = {axis: d + len(missing) for axis, d in self.dims.items()}
        position |= {axis: i for i, axis in enumerate(missing)}
        return in_front(array, [position[axis] for axis in axes])

    def first(self) -> Any:
        """Return the value of device 0, as JAX does for a result declared the same everywhere."""
        value = self
        for axis in self.dims:
            value = value.at(axis, 0)
        return value.array


jax.tree_util.register_pytree_node(
    StackedValue,
    lambda value: ((value.array,), tuple(sorted(value.dims.items()))),
    lambda dims, children: StackedValue(children[0], dict(dims)),
)


def stacked(
    array: Any, axes: Sequence[Axis], dims: Mapping[Axis, int] | None = None
) -> StackedValue:
    """Return a value for an array with `axes` in front, and the other axes at `dims`."""
    shifted = {axis: d + len(axes) for axis, d in (dims or {}).items()}
    return StackedValue(array, {axis: i for i, axis in enumerate(axes)} | shifted)


def split(array: Any, place: Placement) -> StackedValue:
    """Return a global array as the parts of all devices: a reshape, no copy."""
    shape: list[int] = []
    dims: dict[Axis, int] = {}
    for size, axes in zip(array.shape, place, strict=True):
        for axis in axes:
            dims[axis] = len(shape)
            shape.append(axis.size)
            size //= axis.size
        shape.append(size)
    return StackedValue(reshaped(array, shape), dims)


def join(value: StackedValue, place: Placement) -> StackedValue:
    """Join the parts of all devices into one array; axes not in `place` stay as they are."""
    joined_axes = [axis for axes in place for axis in axes]
    if not joined_axes and not value.dims:
        return value
    other_axes = [axis for axis in value.dims if axis not in joined_axes]
    array = value.spread(other_axes + joined_axes)
    rank = len(place)
    order: list[int] = []
    shape: list[int] = []
    start = len(other_axes)
    for dim, axes in enumerate(place):
        size = array.shape[start + len(joined_axes) + dim]
        for axis in axes:
            order.append(start + joined_axes.index(axis))
            size *= axis.size
        order.append(start + len(joined_axes) + dim)
        shape.append(size)
    assert array.ndim == start + len(joined_axes) + rank
    array = ordered(array, [*range(start), *order])
    return stacked(reshaped(array, array.shape[:start] + tuple(shape)), other_axes)


def in_front(array: Any, dims: Sequence[int]) -> Any:
    """Move these dimensions of an array to the front, in this order."""
    return ordered(array, [*dims, *(d for d in range(np.ndim(array)) if d not in dims)])


def is_extended(dtype: Any) -> bool:
    """Return whether a dtype is one of JAX's own, such as that of random keys."""
    return jnp.issubdtype(dtype, jax.dtypes.extended)
