"""How a value on a mesh relates to the same value on one device.

A value is *right* when every device holds the value of one device, or its part of it; it is a
*share* when it becomes right by a reduction over devices; else it is off.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..lift import ValueOnMesh

Agree = Callable[[Any, Any], bool]


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


def relate(
    value: ValueOnMesh, want: np.ndarray, agree: Agree, reductions: Sequence[str]
) -> Relation:
    """Return how a value on a mesh relates to the value `want` on one device."""
    local = value.array.shape[len(value.axes) :]
    if local != want.shape:
        wholes = [*_wholes(value, want.shape)]
        if not wholes:
            return Relation.UNLIKE
        return Relation.RIGHT if any(agree(whole, want) for whole in wholes) else Relation.OFF
    if all(agree(row, want) for row in value.rows):
        return Relation.RIGHT
    return Relation.SHARE if _is_share(value, want, agree, reductions) else Relation.OFF


def _is_share(
    value: ValueOnMesh, want: np.ndarray, agree: Agree, reductions: Sequence[str]
) -> bool:
    """Return whether one reduction makes the value right on all devices."""
    if value.array.dtype == bool:
        return False
    if not jnp.issubdtype(value.array.dtype, jnp.floating):
        reductions = [name for name in reductions if name in {"psum", "pmean"}]
    all_dims = range(len(value.axes))
    for dims in (dims for n in all_dims for dims in itertools.combinations(all_dims, n + 1)):
        for name in reductions:
            with np.errstate(all="ignore"):
                reduced = REDUCE[name](value.array, axis=dims)
            rows = reduced.reshape((-1, *want.shape))
            if all(agree(row, want) for row in rows):
                return True
    return False


def _wholes(value: ValueOnMesh, shape: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield all ways to join the parts of all devices into one array of a shape."""
    count, local = len(value.axes), value.array.shape[len(value.axes) :]
    if len(local) != len(shape):
        return
    for dims in itertools.product(range(len(shape)), repeat=count):  # each axis splits one of them
        joined = list(local)
        for axis, dim in zip(value.axes, dims, strict=True):
            joined[dim] *= axis.size
        if joined != [*shape]:
            continue
        for order in itertools.permutations(range(count)):
            rows = enumerate(range(count, value.array.ndim))
            split = [([axis for axis in order if dims[axis] == dim], last) for dim, last in rows]
            order_of_dims = [axis for axes, last in split for axis in (*axes, last)]
            yield value.array.transpose(order_of_dims).reshape(shape)
