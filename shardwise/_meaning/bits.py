"""Integers that wrap around.

Signed integers of 32 bits and more count as unbounded, except where their bounds are known to
exceed the dtype. With fewer bits, and if unsigned, sums and products do wrap around, but the result
does not depend on the order of a sum. Once such a number is converted to more bits, compared, or
used as an index, wrapping around matters: from there on it is an opaque `held` value, which no
factor is moved out of.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from .._program import Atom, Lit
from . import term as T
from .algebra import few_bits
from .term import Scaled, Term
from .value import Value

MOVES = T.operations(lambda p: p.selects)
"""Operations whose results are elements of their operands, or 0."""

FITS = T.operations(lambda p: p.bounded or p.random) | {"const", "literal"}
"""Operations whose results fit their dtype: constants, random bits, bounded functions."""

Bounds = tuple[T.Coef, T.Coef]


def dtype_of(atom: Atom) -> Any:
    """Return the dtype of an operand."""
    return jnp.result_type(atom.value) if isinstance(atom, Lit) else atom.dtype


def wraps(v: Value, old: Any, new: Any) -> bool:
    """Return whether a conversion between integers may lose upper bits or the sign."""
    if not (jnp.issubdtype(old, jnp.integer) and jnp.issubdtype(new, jnp.integer)):
        return False
    ours, theirs = jnp.iinfo(old), jnp.iinfo(new)
    if theirs.min <= ours.min and ours.max <= theirs.max:
        return False
    limits = None if v.owed else bounds(v.scaled)
    return limits is None or not _within(limits, new)


def widens(old: Any, new: Any) -> bool:
    """Return whether a conversion widens integers or makes them another kind."""
    if not jnp.issubdtype(old, jnp.integer):
        return False
    return not jnp.issubdtype(new, jnp.integer) or jnp.iinfo(new).bits > jnp.iinfo(old).bits


def _within(known: Bounds, dtype: Any) -> bool:
    limits = jnp.iinfo(dtype)
    return limits.min <= known[0] and known[1] <= limits.max


def may_have_wrapped(v: Value, dtype: Any) -> bool:
    """Return whether a value may have exceeded its dtype; an argument has not."""
    if not jnp.issubdtype(dtype, jnp.integer):
        return False
    wide = not few_bits(dtype)
    if not wide and any(kind == "sum" for _, kind in v.owed):
        return True  # a small sum may have large shares
    limits = bounds(v.scaled)
    if limits is not None:
        return not _within(limits, dtype)
    return not wide and not _fits(v.scaled, dtype)


def _fits(x: Scaled, dtype: Any) -> bool:
    """Return whether every element is in the range of its dtype."""
    stack, seen = [x], {x}
    while stack:
        coef, t = stack.pop()
        limits = bounds((coef, t))
        if limits is not None:
            if not _within(limits, dtype):
                return False
        elif t.op in MOVES:
            stack += [(coef * c, kid) for c, kid in t.kids if (coef * c, kid) not in seen]
            seen.update((coef * c, kid) for c, kid in t.kids)
        elif coef != 1 or not _given(t):
            return False
    return True


def _given(t: Term) -> bool:
    """Return whether a term fits its dtype: an argument, or a result of a named function."""
    if t.op == "symbol":
        return t.params[0] not in ("carry", "step")
    typed = isinstance(t.params, tuple) and any(
        isinstance(param, tuple) and param[:1] == ("operand",) for param in t.params
    )
    return t.op in FITS or typed or t.op.endswith("on each device")


def held(v: Value, dtype: Any) -> Value:
    """Return the value that a device has: wrapped in `held` if it may have wrapped around."""
    if v.owed or not may_have_wrapped(v, dtype):
        return v
    return v.having(T.elementwise("held", str(dtype), [v.scaled], v.term.shape))


def rounded(v: Value, dtype: Any) -> Value:
    """Return a value as rounded to a dtype, if it is made of coordinates that are too large.

    All other values count as real numbers. But `arange(1024, dtype=bfloat16)` is not exact.
    """
    if v.owed or not jnp.issubdtype(dtype, jnp.inexact):
        return v
    limits = bounds(v.scaled)
    if limits is None or max(map(abs, limits)) <= 2 ** (jnp.finfo(dtype).nmant + 1):
        return v
    if T.is_one(v.term) and _is_in(dtype, v.coef):
        return v
    return v.having(T.elementwise("held", str(dtype), [v.scaled], v.term.shape))


def _is_in(dtype: Any, x: T.Coef) -> bool:
    """Return whether a floating-point dtype has an integer; of other numbers nothing is asked."""
    if x.denominator != 1:
        return True
    try:
        return int(jnp.finfo(dtype).dtype.type(float(x))) == x
    except (OverflowError, ValueError):  # infinite, or NaN
        return False


# --- bounds of a term

_KNOWN: weakref.WeakKeyDictionary[Term, Bounds | None] = weakref.WeakKeyDictionary()


def bounds(x: Scaled) -> Bounds | None:
    """Return the bounds of a term of coordinates and constants."""
    coef, t = x
    if not coef:
        return 0, 0
    limits = T.bottom_up(t, _KNOWN, _own, lambda t: [kid for c, kid in _bounding(t) if c])
    return None if limits is None else _ordered(coef * limits[0], coef * limits[1])


def _ordered(*ends: T.Coef) -> Bounds:
    return min(ends), max(ends)


def _bounding(t: Term) -> Sequence[Scaled]:
    """Return the operands that the bounds of a term depend on."""
    if t.op in ("sum", "product", "reduce_sum"):
        return t.kids
    if t.op not in MOVES:
        return ()
    if t.op == "gather":
        return t.kids[:1] if "FILL" not in t.params[2][0] else ()
    if t.op == "select":
        return t.kids[1:]
    return t.kids[:1] if t.op in ("dynamic_slice", "rows") else t.kids


def _own(t: Term) -> Bounds | None:
    kids = _bounding(t)
    if t is T.ONE:
        return 1, 1
    if t.op == "iota":
        return 0, max(t.shape[0] - 1, 0)
    if t.op in T.TRUTHS:
        return 0, 1
    if t.op in ("argmax", "argmin"):
        inner = t.kids[0][1].shape
        return 0, max(math.prod(inner[d] for d in t.params) - 1, 0)
    if not kids or (t.op in ("reduce_max", "reduce_min") and 0 in t.kids[0][1].shape):
        return None  # the largest of no elements is minus infinity, or the least integer
    ends: list[Bounds] = []
    for coef, kid in kids:
        limits = _KNOWN[kid] if coef else (0, 0)
        if limits is None:
            return None
        ends.append(_ordered(coef * limits[0], coef * limits[1]))
    match t.op:
        case "sum":
            return sum(low for low, _ in ends), sum(high for _, high in ends)
        case "product":
            return _multiplied(ends, t.params)
        case "reduce_sum":
            count = math.prod(t.kids[0][1].shape[d] for d in t.params)
            return ends[0][0] * count, ends[0][1] * count
    ends += [(0, 0)] if t.op in ("pad", "permute", "rows") else []
    return min(low for low, _ in ends), max(high for _, high in ends)


def _multiplied(ends: Sequence[Bounds], powers: Sequence[int]) -> Bounds | None:
    low, high = 1, 1
    for limits, power in zip(ends, powers, strict=True):
        for _ in range(power):
            low, high = _ordered(*(a * b for a, b in itertools.product((low, high), limits)))
    return low, high


__all__ = ["bounds", "dtype_of", "few_bits", "held", "rounded", "widens", "wraps"]
