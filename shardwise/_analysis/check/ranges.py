"""Detect numbers that may exceed the range of their dtype on some meshes and not on others.

The symbolic analysis ignores ranges and NaN. A sum of float16 that overflows on two devices, or one
of int8 that wraps around there, is right on eight, where each device adds up fewer numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import _jax
from ..._program import AxisIndex, Body, Collective, Leaf, Op, Scan, Var, While, primitives, walk
from ..lift import eps_of
from .flow import carried, counts

SHORT_RANGE = 1e30
"""Dtypes with a smaller maximum may overflow in sums of ordinary numbers."""

ADDS = primitives.names(lambda p: p.combines in ("sum", "prod") and not p.pointwise)
"""Operations that add up or multiply as many numbers as a device holds."""

COUNTING = primitives.names(
    lambda p: p.combines == "sum" and p.acts in ("reduces", "scans", "collective")
)
"""Sums that stay small if they count how often something is true."""

GROWS = (ADDS - COUNTING) | primitives.names(
    lambda p: p.pointwise and p.growth and p.combines != "sum" and p.name != "convert_element_type"
)
"""Operations that can make large numbers from small ones."""


def short_range(body: Body) -> Any:
    """Return a dtype of the program with a range far below float32's, such as float16, or None."""
    outputs = (var for op in walk(body.ops) for var in op.outs)
    kinds = {var.dtype for var in (*body.ins, *outputs) if eps_of(var.dtype)}
    return min((kind for kind in kinds if _largest(kind) < SHORT_RANGE), key=_largest, default=None)


def whole_numbers(body: Body) -> Any:
    """Return the narrowest integer dtype that is summed, other than for counting, or None."""
    places: set[Any] = set()
    """Sizes, positions, device indices, constants, and what is computed from them alone."""
    numbered: set[Any] = set()
    """Counts of how often something is true."""
    dtypes = []
    for op in walk(body.ops):
        name = getattr(op, "name", "")
        operands = [atom for atom in op.ins if isinstance(atom, Var)]
        wide = all(getattr(var.dtype, "itemsize", 4) >= 4 for var in op.outs)
        positions = _places(op, name, places if wide and name not in ADDS else set())
        places |= positions
        if positions:
            continue
        places |= _handed(op, places)
        small = all(var in numbered or var in places or var.dtype == jnp.bool_ for var in operands)
        if isinstance(op, Leaf | Collective) and operands and small and wide and name not in GROWS:
            numbered |= set(op.outs)
        elif name in ADDS or (name in primitives.STEPS and (len(operands) > 1 or not wide)):
            dtypes += [var.dtype for var in op.outs if jnp.issubdtype(var.dtype, jnp.integer)]
    return min(dtypes, key=lambda dtype: jnp.iinfo(dtype).max, default=None)


def asks_for_nan(body: Body) -> bool:
    """Return whether a program tests its numbers for NaN, which the analysis ignores."""
    return any(
        getattr(op, "name", "") in ("eq", "ne") and op.ins[0] is op.ins[1] for op in walk(body.ops)
    )


def asks_whether_finite(body: Body) -> bool:
    """Return whether a program tests its numbers for NaN or infinity."""
    tests = (getattr(op, "name", "") == "is_finite" for op in walk(body.ops))
    return asks_for_nan(body) or any(tests)


def are_vast(values: Iterable[Any]) -> bool:
    """Return whether the square of some number may exceed the range of its dtype."""
    return any(_is_vast(value) for value in values if not _jax.is_traced(value))


def _places(op: Op, name: str, places: set[Any]) -> set[Any]:
    """Return the results that are sizes or positions, or are computed from such alone."""
    if (
        isinstance(op, AxisIndex)
        or name in ("argmax", "argmin")
        or primitives.of(name).acts == "makes"
    ):
        return set(op.outs)
    if name == "top_k":
        return set(op.outs[1:])
    if name == "sort":
        return {result for atom, result in zip(op.ins, op.outs, strict=True) if atom in places}
    operands = [atom for atom in op.ins if isinstance(atom, Var)]
    numbers = [var for var in operands if var.dtype != jnp.bool_]
    simple = isinstance(op, Leaf) and (numbers or not operands)
    return set(op.outs) if simple and all(var in places for var in numbers) else set()


def _handed(op: Op, places: set[Any]) -> set[Var]:
    """Return the inputs of an operation's bodies that are such numbers, and loop counters."""
    if isinstance(op, Scan):
        positions = range(op.consts, op.consts + op.carry)
        rows = enumerate(zip(op.ins, op.body.ins, strict=True))
        pairs = [pair for i, pair in rows if i not in positions or counts(op, i - op.consts)]
    elif isinstance(op, While):
        first, second = op.cond_consts, op.cond_consts + op.body_consts
        pairs = [*zip(op.ins[:first], op.cond.ins, strict=False)]
        pairs += zip(op.ins[first:second], op.body.ins, strict=False)
        carry = zip(op.ins[second:], op.cond.ins[first:], carried(op), strict=True)
        for i, (atom, *inner) in enumerate(carry):
            pairs += [(atom, var) for var in inner if counts(op, i)]
    else:
        pairs = [(a, b) for body in op.bodies for a, b in zip(op.ins[1:], body.ins, strict=True)]
    wide = [(atom, var) for atom, var in pairs if getattr(var.dtype, "itemsize", 4) >= 4]
    return {var for atom, var in wide if not isinstance(atom, Var) or atom in places}


def _largest(dtype: Any) -> float:
    return float(jnp.finfo(dtype).max)


def _is_vast(value: Any) -> bool:
    dtype = jax.typeof(value).dtype
    if not eps_of(dtype) or not np.size(value):
        return False
    largest = np.abs(np.asarray(value)).max()
    return not float(largest) ** 2 < _largest(dtype)
