"""Arrays in another shape, in few equations: none at all where nothing changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax


def ordered(array: Any, order: Sequence[int]) -> Any:
    """An array with its dimensions in this order."""
    return array if list(order) == sorted(order) else lax.transpose(array, order)


def moved(array: Any, source: int, target: int) -> Any:
    """An array with one of its dimensions at another place."""
    order = [d for d in range(np.ndim(array)) if d != source]
    order.insert(target, source)
    return ordered(array, order)


def reshaped(array: Any, shape: Sequence[int]) -> Any:
    """An array of this shape."""
    return array if np.shape(array) == tuple(shape) else lax.reshape(array, shape)


def picked(array: Any, rows: Sequence[int] | np.ndarray) -> Any:
    """Rows of an array, in this order.

    Always a gather, also where two slices would do: XLA computes what it slices anew for each
    slice, so that it takes long to compile a chain of them.
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
