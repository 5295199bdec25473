"""Detect numbers that may exceed the range of their dtype on some meshes and not on others.

The symbolic analysis ignores ranges and NaN. A sum of float16 that overflows on two devices, or one
of int8 that wraps around there, is right on eight, where each device adds up fewer numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import _jax
from ..._program import Body, primitives, walk
from .ranges import FAR
from .widths import eps_of

ADDS = primitives.names(lambda p: p.combines in ("sum", "prod") and not p.pointwise)
"""Operations that add up or multiply as many numbers as a device holds."""


NARROW = 2
"""The largest size in bytes of integer dtypes whose sums may wrap around, whatever is added."""


def short_range(body: Body) -> Any:
    """Return a dtype of the program with a range far below float32's, such as float16, or None."""
    outputs = (var for op in walk(body.ops) for var in op.outs)
    kinds = {var.dtype for var in (*body.ins, *outputs) if eps_of(var.dtype)}
    return min((kind for kind in kinds if _largest(kind) < FAR), key=_largest, default=None)


def wrapping(body: Body, values: Iterable[Any], devices: int) -> Any:
    """Return the narrowest integer dtype whose sums may wrap around, or None.

    Those of 8 and 16 bits may; others if all elements of the largest array are as large as the
    largest integer among the arguments, on every device.
    """
    ops = [*walk(body.ops)]
    arrays = [np.asarray(x) for x in values if jnp.issubdtype(jax.typeof(x).dtype, jnp.integer)]
    largest = max((np.abs(x.astype(np.float64)).max(initial=1) for x in arrays), default=1)
    total = largest * devices * max((math.prod(v.shape) for op in ops for v in op.outs), default=1)
    sums = (op for op in ops if getattr(op, "name", "") in ADDS | primitives.STEPS)
    dtypes = {var.dtype for op in sums for var in op.outs if jnp.issubdtype(var.dtype, jnp.integer)}
    ends = {dtype: jnp.iinfo(dtype).max for dtype in dtypes}
    narrow = [d for d, end in ends.items() if d.itemsize <= NARROW or total > end]
    return min(narrow, key=ends.__getitem__, default=None)


def asks_for_nan(body: Body) -> bool:
    """Return whether a program tests its numbers for NaN, which the analysis ignores."""
    return any(
        getattr(op, "name", "") in ("eq", "ne") and op.ins[0] is op.ins[1] for op in walk(body.ops)
    )


def are_vast(values: Iterable[Any]) -> bool:
    """Return whether the square of some number may exceed the range of its dtype."""
    for value in values:
        dtype = jax.typeof(value).dtype
        if eps_of(dtype) and np.size(value) and not _jax.is_traced(value):
            largest = float(np.abs(np.asarray(value)).max())
            if not largest * largest < _largest(dtype):
                return True
    return False


def _largest(dtype: Any) -> float:
    return float(jnp.finfo(dtype).max)
