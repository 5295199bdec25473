"""Reshape arrays in few equations, without any if nothing changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax


def ordered(array: Any, order: Sequence[int]) -> Any:
    """Return an array with its dimensions in this order."""
    return array if list(order) == sorted(order) else lax.transpose(array, order)


def moved(array: Any, source: int, target: int) -> Any:
    """Return an array with one dimension moved."""
    order = [d for d in range(np.ndim(array)) if d != source]
    order.insert(target, source)
    return ordered(array, order)


def reshaped(array: Any, shape: Sequence[int]) -> Any:
    """Return an array with this shape."""
    return array if np.shape(array) == tuple(shape) else lax.reshape(array, shape)


def picked(array: Any, rows: Sequence[int] | np.ndarray) -> Any:
    """Return rows of an array, in this order.

    This is always a gather, even if two slices would do: XLA recomputes the operand of each slice,
    so that a chain of them takes long to compile.
    """
    rest = np.shape(array)[1:]
    return lax.gather(
        array,
        np.asarray(rows, np.int32)[:, None],
        lax.GatherDimensionNumbers(
            offset_dims=tuple(range(1, len(rest) + 1)),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
        ),
        (1, *rest),
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )
