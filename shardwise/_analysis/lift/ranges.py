"""The ranges of declared dtypes: a value beyond one becomes what the dtype has there."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ... import _jax
from ..._program import Atom, Collective, Leaf, Var
from ..._program import collectives as _collectives
from ..._program.primitives import of
from .leaves import beside
from .widths import FLOAT, wide_dtype

FAR = 1e30
"""A number that a few products or sums of ordinary numbers do not exceed."""


def may_leave(op: Leaf | Collective, dtype: Any, vast: bool) -> bool:
    """Return whether results of `dtype` may be beyond its range; `vast` if operands are near it."""
    near = vast or float(jnp.finfo(dtype).max) < FAR
    return of(op.name).growth >= (1 if near else 2)


@functools.lru_cache
def in_range(dtype: Any) -> _jax.Equation | None:
    """Return an operation that maps float64 values to the range of `dtype`; None for float64."""
    if wide_dtype(dtype) != FLOAT or dtype == FLOAT:
        return None
    limit, beyond = _end(dtype)
    return _jax.within_range(limit, beyond)


@functools.lru_cache
def _end(dtype: Any) -> tuple[float, float]:
    """Return the limit beyond which a dtype has no values, and the value it has there instead."""
    info = jnp.finfo(dtype)
    largest = float(info.max)
    # Numbers up to half a unit beyond the largest round to it.
    limit = largest + 2.0 ** (math.frexp(largest)[1] - 2 - info.nmant)
    with np.errstate(all="ignore"):
        beyond = float(np.asarray(largest * 4, FLOAT).astype(dtype).astype(FLOAT))
    return limit, beyond


def sums_one_by_one(op: Collective) -> bool:
    """Return whether a sum over devices may leave its range in between and return to it."""
    return op.name == "psum" and _collectives.is_order_sensitive(op.name, op.outs[0].dtype)


def one_by_one(op: Collective, ins: list[Atom], outs: list[Var]) -> tuple[Collective, Leaf]:
    """Return a sum over devices as an `all_gather` and a sequential sum in float16."""
    count = len(op.groups[0]) if op.groups else math.prod(axis.size for axis in op.axes)
    gathered = Var((count, *outs[0].shape), outs[0].dtype)
    gathered.axes = outs[0].axes
    params = {"dimension": 0, "tiled": False}
    first = dataclasses.replace(op, ins=ins, outs=[gathered], name="all_gather", params=params)
    return first, beside(op, gathered, outs[0], "psum", _added_up)


def _added_up(x: Any) -> list[Any]:
    totals = lax.cumsum(x, 0)
    limit, beyond = _end(jnp.dtype(jnp.float16))
    overflowed = (abs(totals) >= limit).any(0)
    return [jnp.where(overflowed, jnp.sign(totals[-1]) * beyond, totals[-1])]
