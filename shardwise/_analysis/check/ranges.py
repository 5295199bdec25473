"""Numbers that may leave the range of their type, on some meshes and not on others.

Meaning knows no end of numbers. A sum of float16 that is infinite on two devices, or one of int8
that wraps around there, is what it should be on eight, where each of them adds up less. Nor does it
know NaN.
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
"""Where types end that sums of ordinary numbers may leave."""

ADDS = primitives.names(lambda p: p.combines in ("sum", "prod") and not p.pointwise)
"""What adds up or multiplies as many numbers as a device holds."""

COUNTING = primitives.names(
    lambda p: p.combines == "sum" and p.acts in ("reduces", "scans", "collective")
)
"""Sums that are small if what they count is there or not."""

GROWS = (ADDS - COUNTING) | primitives.names(
    lambda p: p.pointwise and p.growth and p.combines != "sum" and p.name != "convert_element_type"
)
"""What may make large numbers of small ones."""


def short_range(body: Body) -> Any:
    """A type of the program that ends far below float32, float16 say; None if there is none."""
    made = (var for op in walk(body.ops) for var in op.outs)
    kinds = {var.dtype for var in (*body.ins, *made) if eps_of(var.dtype)}
    return min((kind for kind in kinds if _largest(kind) < SHORT_RANGE), key=_largest, default=None)


def whole_numbers(body: Body) -> Any:
    """The narrowest type of whole numbers that are added up, other than counts; None if none is."""
    places: set[Any] = set()
    """Numbers of elements and devices, constants, and what is computed from them."""
    numbered: set[Any] = set()
    """How often something is the case."""
    found = []
    for op in walk(body.ops):
        name = getattr(op, "name", "")
        given = [atom for atom in op.ins if isinstance(atom, Var)]
        wide = all(getattr(var.dtype, "itemsize", 4) >= 4 for var in op.outs)
        own = _places(op, name, places if wide and name not in ADDS else set())
        places |= own
        if own:
            continue
        places |= _handed(op, places)
        small = all(var in numbered or var in places or var.dtype == jnp.bool_ for var in given)
        if isinstance(op, Leaf | Collective) and given and small and wide and name not in GROWS:
            numbered |= set(op.outs)
        elif name in ADDS or (name in primitives.STEPS and (len(given) > 1 or not wide)):
            found += [var.dtype for var in op.outs if jnp.issubdtype(var.dtype, jnp.integer)]
    return min(found, key=lambda dtype: jnp.iinfo(dtype).max, default=None)


def asks_for_nan(body: Body) -> bool:
    """Whether a program asks of its numbers whether they are NaN, which to meaning none is."""
    return any(
        getattr(op, "name", "") in ("eq", "ne") and op.ins[0] is op.ins[1] for op in walk(body.ops)
    )


def asks_whether_finite(body: Body) -> bool:
    """Return whether a program asks of its numbers whether they are NaN or infinite."""
    asked = (getattr(op, "name", "") == "is_finite" for op in walk(body.ops))
    return asks_for_nan(body) or any(asked)


def are_vast(values: Iterable[Any]) -> bool:
    """Whether a square of some number may be too large for its type."""
    return any(_is_vast(value) for value in values if not _jax.is_traced(value))


def _places(op: Op, name: str, places: set[Any]) -> set[Any]:
    """Which results are numbers of elements, or are computed from such alone."""
    if (
        isinstance(op, AxisIndex)
        or name in ("argmax", "argmin")
        or primitives.of(name).acts == "makes"
    ):
        return set(op.outs)
    if name == "top_k":
        return set(op.outs[1:])
    if name == "sort":
        return {out for atom, out in zip(op.ins, op.outs, strict=True) if atom in places}
    given = [atom for atom in op.ins if isinstance(atom, Var)]
    numbers = [var for var in given if var.dtype != jnp.bool_]
    alone = isinstance(op, Leaf) and (numbers or not given)
    return set(op.outs) if alone and all(var in places for var in numbers) else set()


def _handed(op: Op, places: set[Any]) -> set[Var]:
    """What the bodies of an operation are given of such numbers, and the turns that they count."""
    if isinstance(op, Scan):
        turns = range(op.consts, op.consts + op.carry)
        given = enumerate(zip(op.ins, op.body.ins, strict=True))
        pairs = [own for i, own in given if i not in turns or counts(op, i - op.consts)]
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
    most = np.abs(np.asarray(value)).max()
    return not float(most) ** 2 < _largest(dtype)
