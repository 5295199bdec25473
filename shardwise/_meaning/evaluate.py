"""Numerical evaluation of terms of coordinates and constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .term import ONE, Scaled, Term

LARGE = 1 << 22
"""Arrays of more elements than this are not evaluated."""

EACH: dict[str, Callable[..., Any]] = {
    "max": np.maximum,
    "min": np.minimum,
    "rem": lambda x, y: abs(x) % abs(y) * np.sign(x),
    "zero": lambda x: x == 0,
    "ne": lambda x, y=0: x != y,
    "negative": lambda x: x < 0,
    "positive": lambda x: x > 0,
    "nonpositive": lambda x: x <= 0,
    "nonnegative": lambda x: x >= 0,
    "is_nan": lambda x: x != x,
    "sign": np.sign,
    "abs": np.abs,
    "clamp": lambda low, x, high: np.clip(x, low, high),
}

FLOATING = ("floating",)
"""Marks floating-point comparisons, which are not evaluated since rounding may decide them."""


TRUTH: dict[str, Callable[..., Any]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
}
"""For booleans only: on integers these act on bits."""


Given = Mapping[Term, np.ndarray]


def numbers(x: Scaled, given: Given | None = None) -> np.ndarray | None:
    """Return the exact value of a term, or None if it depends on an argument.

    `given` has values for some terms that do, of the terms' own shapes.
    """
    return _scaled(x, dict(given or {}))


def _scaled(x: Scaled, known: dict[Term, Any]) -> np.ndarray | None:
    """Evaluate a term, caching each subterm in `known`."""
    coef, t = x
    if not coef:
        return np.zeros(t.shape, object)
    if t not in known:
        known[t] = _term(t, known)
    return None if known[t] is None else np.asarray(known[t] * coef, object)


def _term(t: Term, known: dict[Term, Any]) -> Any:
    if t is ONE:
        return np.array(1, object)
    if np.prod(t.shape, dtype=float) > LARGE:
        return None
    if t.op == "iota":
        return np.arange(t.shape[0]).astype(object)
    kids: list[Any] = []
    for kid in t.kids:
        kids.append(_scaled(kid, known))
        if kids[-1] is None:
            return None
    if not kids:
        return None
    values: list[Any] = kids
    if t.op == "bcast":
        shape = [1] * len(t.shape)
        for size, d in zip(values[0].shape, t.params, strict=True):
            shape[d] = size
        return np.broadcast_to(values[0].reshape(shape), t.shape)
    if t.op == "sum":
        return sum(values[1:], start=values[0])
    if t.op == "product":
        out = np.ones(t.shape, object)
        for base, power in zip(values, t.params, strict=True):
            out = out * base**power
        return out
    if t.op == "div" and t.params == ():
        return values[0] // values[1] if (values[1] > 0).all() and (values[0] >= 0).all() else None
    if t.op == "reshape":
        return values[0].reshape(t.shape)
    if t.op == "transpose":
        return values[0].transpose(t.params)
    if t.op == "slice":
        d, start, stride = t.params
        return np.take(values[0], range(start, start + t.shape[d] * stride, stride), axis=d)
    if t.op == "concatenate":
        return np.concatenate(values, axis=t.params)
    if t.op == "select":
        which = values[0].astype(int)
        return np.choose(which, values[1:]) if len(values) <= 3 else None
    if t.op in TRUTH and dict(t.params)["operand"] == "bool":
        return np.asarray(TRUTH[t.op](*values)).astype(object) * 1
    if t.op == "rem" and (values[1] == 0).any():
        return None
    if t.op in EACH and t.params != FLOATING:
        return np.asarray(EACH[t.op](*values)).astype(object) * 1
    return None
