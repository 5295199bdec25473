"""Numbers that may leave the range of their type, on some meshes and not on others.

Meaning knows no end of numbers. A sum of float16 that is infinite on two devices, or one of int8
that wraps around there, is what it should be on eight, where each of them adds up less.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _jax
from .._program import AxisIndex, Body, Collective, Leaf, Op, Var, walk
from .rounding import eps_of

SHORT_RANGE = 1e30
"""Where types end that sums of ordinary numbers may leave."""

_ADDS = """
    conv_general_dilated cumprod cumsum dot_general psum psum_scatter reduce_prod reduce_sum
    reduce_window_sum scatter-add scatter-sub
"""
ADDS = frozenset(_ADDS.split())
"""What adds up or multiplies as many numbers as a device holds."""

GROWS = ADDS | {"integer_pow", "mul", "pow", "shift_left"}
"""What may make large numbers of small ones; sums are small if what they count is there or not."""

PLACES = frozenset({"argmax", "argmin", "argsort", "iota", "sort", "top_k"})
"""What gives numbers of elements."""


def short_range(body: Body) -> Any:
    """A type of the program that ends far below float32, float16 say; None if there is none."""
    made = (var for op in walk(body.ops) for var in op.outs)
    kinds = {var.dtype for var in (*body.ins, *made) if eps_of(var.dtype)}
    return min((kind for kind in kinds if _largest(kind) < SHORT_RANGE), key=_largest, default=None)


def whole_numbers(body: Body) -> Any:
    """The narrowest type of whole numbers that are added up, other than counts; None if none is."""
    counts: set[Any] = set()
    found = []
    for op in walk(body.ops):
        name = getattr(op, "name", "")
        if _counts(op, name, counts):
            counts |= set(op.outs)
        elif name in ADDS:
            found += [var.dtype for var in op.outs if jnp.issubdtype(var.dtype, jnp.integer)]
    return min(found, key=lambda dtype: jnp.iinfo(dtype).max, default=None)


def are_vast(values: Iterable[Any]) -> bool:
    """Whether a square of some number may be too large for its type."""
    return any(_is_vast(value) for value in values if not _jax.is_traced(value))


def _counts(op: Op, name: str, counts: set[Any]) -> bool:
    """Whether whole numbers are those of elements, or count how often something is the case."""
    if isinstance(op, AxisIndex) or name in PLACES:
        return True
    if not isinstance(op, Leaf | Collective):
        return False
    given = [atom for atom in op.ins if isinstance(atom, Var)]
    small = all(var in counts or var.dtype == jnp.bool_ for var in given)
    if any(var.dtype == jnp.bool_ for var in op.outs):
        return False
    wide = all(getattr(var.dtype, "itemsize", 4) >= 4 for var in op.outs)
    grows = name in GROWS and name not in ("cumsum", "psum", "psum_scatter", "reduce_sum")
    return bool(given) and small and wide and not grows


def _largest(dtype: Any) -> float:
    return float(jnp.finfo(dtype).max)


def _is_vast(value: Any) -> bool:
    dtype = jax.typeof(value).dtype
    if not eps_of(dtype) or not np.size(value):
        return False
    most = np.abs(np.asarray(value)).max()
    return not float(most) ** 2 < _largest(dtype)
