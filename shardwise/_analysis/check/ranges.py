"""Detect numbers that may exceed the range of their dtype on some meshes and not on others.

The symbolic analysis ignores ranges and NaN. A sum of float16 that overflows on two devices, or one
of int8 that wraps around there, is right on eight, where each device adds up fewer numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import _jax
from ..._program import Atom, Body, Leaf, Op, Var, primitives, walk
from ..._program.primitives import COMPARISONS, of
from ..lift import eps_of
from .bounds import literal

NARROW = 2
"""The largest size in bytes of integers that are expected to wrap around."""

SHORT_RANGE = 1e30
"""Dtypes with a smaller maximum may overflow in sums of ordinary numbers."""

FEW = 5
"""The number of special values that are drawn."""

ADDS = primitives.names(lambda p: p.combines in ("sum", "prod") and not p.pointwise)
"""Operations that add up or multiply as many numbers as a device holds."""


def short_range(body: Body) -> Any:
    """Return a dtype of the program with a range far below float32's, such as float16, or None."""
    outputs = (var for op in walk(body.ops) for var in op.outs)
    kinds = {var.dtype for var in (*body.ins, *outputs) if eps_of(var.dtype)}
    return min((kind for kind in kinds if _largest(kind) < SHORT_RANGE), key=_largest, default=None)


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


def asked_of_floats(body: Body) -> list[float]:
    """Return the numbers that a program tests its floats for: NaN, infinity, 0 and other literals.

    Zero also where it takes the sign of a number.
    """
    asked: dict[str, float] = {}
    ops = [*walk(body.ops)]
    makers = {out: op for op in ops for out in op.outs}
    for op in ops:
        if not isinstance(op, Leaf) or not op.ins or not eps_of(_dtype_of(op.ins[0])):
            continue
        equal = op.name in ("eq", "ne")
        if op.name == "is_finite" or (equal and op.ins[0] is op.ins[1]):
            asked["nan"] = math.nan
        elif op.name == "sign":
            asked["0.0"] = 0.0
        elif op.name in COMPARISONS:
            numbers = [written(atom, makers) for atom in op.ins]
            asked |= {str(n): n for n in numbers if n is not None and (equal or math.isinf(n))}
    return list(asked.values())[:FEW]


def decides_by_order(body: Body) -> bool:
    """Return whether a program takes the positions of floats by their order, as `argmax` does."""
    ops = (op for op in walk(body.ops) if isinstance(op, Leaf) and op.ins)
    return any(
        of(op.name).acts == "searches" and len(op.ins) > op.params.get("num_keys", 0)
        for op in ops
        if eps_of(_dtype_of(op.ins[0]))
    )


def written(atom: Atom, makers: Mapping[Var, Op]) -> float | None:
    """Return the number that a value stands for, if it is a literal."""
    array = literal(atom, makers)
    return None if array is None or eps_of(array.dtype) == 0 else float(array)


def _dtype_of(atom: Atom) -> Any:
    return atom.dtype if isinstance(atom, Var) else np.asarray(atom.value).dtype


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
