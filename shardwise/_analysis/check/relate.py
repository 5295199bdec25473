"""How a value on a mesh relates to the same value on one device.

A value is *right* when every device holds the value of one device, or its part of it; it is a
*share* when it becomes right by a reduction over devices; else it is off.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._mesh import Axis
from ..._program import Var

Agree = Callable[[Any, Any], bool]


@dataclasses.dataclass(frozen=True)
class Held:
    """A value on all devices: a leading dimension for each axis over which it differs."""

    array: np.ndarray
    axes: tuple[Axis, ...] = ()

    @property
    def first(self) -> np.ndarray:
        """The value on device 0, which JAX returns for a result declared the same everywhere."""
        return self.array[(0,) * len(self.axes)]

    @property
    def rows(self) -> np.ndarray:
        """The value of each device, one row per device."""
        lead, local = self.array.shape[: len(self.axes)], self.array.shape[len(self.axes) :]
        return self.array.reshape((math.prod(lead), *local))


Beside = Mapping[Var, tuple[Held, np.ndarray]]
"""Values on the mesh, each with its twin on one device."""


class Relation(enum.Enum):
    """The relation of a value to its twin."""

    RIGHT = "right"
    SHARE = "right after a reduction"
    OFF = "wrong"
    UNLIKE = "of a shape that cannot be compared"


REDUCE: dict[str, Callable[..., Any]] = {
    "psum": np.sum,
    "pmean": np.mean,
    "pmax": np.max,
    "pmin": np.min,
}


def relate(held: Held, want: np.ndarray, agree: Agree, reductions: Sequence[str]) -> Relation:
    """Return how a value on a mesh relates to the value `want` on one device."""
    local = held.array.shape[len(held.axes) :]
    if local != want.shape:
        wholes = _wholes(held, want.shape)
        if not wholes:
            return Relation.UNLIKE
        return Relation.RIGHT if any(agree(whole, want) for whole in wholes) else Relation.OFF
    if all(agree(row, want) for row in held.rows):
        return Relation.RIGHT
    return Relation.SHARE if _is_share(held, want, agree, reductions) else Relation.OFF


def _is_share(held: Held, want: np.ndarray, agree: Agree, reductions: Sequence[str]) -> bool:
    """Return whether one reduction makes the value right on all devices."""
    if held.array.dtype == bool:
        return False
    array = held.array
    if jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(np.float64)
    else:
        reductions = [name for name in reductions if name in {"psum", "pmean"}]
    for count in range(1, len(held.axes) + 1):
        for dims in itertools.combinations(range(len(held.axes)), count):
            lead_count = len(held.axes) - count
            for name in reductions:
                with np.errstate(all="ignore"):
                    reduced = REDUCE[name](array, axis=dims)
                rows = reduced.reshape((-1, *reduced.shape[lead_count:]))
                if all(agree(row, want) for row in rows):
                    return True
    return False


def _wholes(held: Held, shape: Sequence[int]) -> list[np.ndarray]:
    """Return all ways to join the parts of all devices into one array of a shape."""
    local = held.array.shape[len(held.axes) :]
    if len(local) != len(shape) or held.array.size != np.prod(shape, dtype=int):
        return []
    wholes = []
    for order in itertools.permutations(range(len(held.axes))):
        array, dims = held.array.transpose(*order, *_rest(held)), list(shape)
        dims_by_axis = _deal([held.axes[dim].size for dim in order], local, dims)
        if dims_by_axis is not None:
            wholes.append(_merge(array, dims_by_axis, shape))
    return wholes


def _rest(held: Held) -> range:
    return range(len(held.axes), held.array.ndim)


def _deal(sizes: Sequence[int], local: Sequence[int], whole: Sequence[int]) -> list[int] | None:
    """Assign each axis the dimension that it splits: greedily, in order."""
    ratios = [
        full // part if part and full % part == 0 else 0
        for part, full in zip(local, whole, strict=True)
    ]
    split_dims = []
    for size in sizes:
        dim = next((i for i, ratio in enumerate(ratios) if ratio > 1 and ratio % size == 0), None)
        if size == 1:
            dim = 0
        if dim is None:
            return None
        ratios[dim] //= size
        split_dims.append(dim)
    return split_dims if all(ratio == 1 for ratio in ratios) else None


def _merge(array: np.ndarray, taken: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """Merge each axis into the dimension that it splits."""
    count = len(taken)
    order: list[int] = []
    for dim in range(len(shape)):
        order += [axis for axis, split_dim in enumerate(taken) if split_dim == dim]
        order.append(count + dim)
    return array.transpose(order).reshape(shape)
