"""Sums, products and elementwise functions in one normal form."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from .node import (
    ONE,
    Coef,
    Scaled,
    Shape,
    Term,
    core,
    is_one,
    length,
    make,
    not_finite,
    number,
    over,
    tidy,
    times,
)
from .spread import bcast, full, iota, strip, uniform_dims, zero
from .work import spend

FLAT = 48
"""Sums and products of more terms than this stay nested: residual streams grow with depth."""


def add(parts: Iterable[Scaled], shape: Shape, lost: list[Scaled] | None = None) -> Scaled:
    """Add, flattening, sorting and collecting like terms; append what cancels to `lost`."""
    total: dict[Term, Coef] = {}
    for coef, term in parts:
        summands = _summands(term)
        long = length(coef)
        spend(sum(long * length(c) for c, _ in summands))
        for c, t in summands:
            if t in total and coef * c * total[t] < 0 and not_finite(t):
                return full((1, make("literal", "nan", (), ())), shape)
            if vanishes(t):
                total[t] = 1
                continue
            total[t] = tidy(total.get(t, 0) + coef * c)
            if lost is not None and coef * c and not total[t]:
                lost.append((tidy(coef * c), t))
    terms = sorted((t for t, c in total.items() if c), key=lambda t: t.number)
    if not terms:
        return zero(shape)
    if len(terms) == 1:
        return total[terms[0]], terms[0]
    lead = next((total[t] for t in terms if not vanishes(t)), 1)
    long = length(lead)
    spend(sum(long * length(total[t]) - 1 for t in terms))
    return _hoisted(
        "sum", (), [(1 if vanishes(t) else over(total[t], lead), t) for t in terms], shape, lead
    )


NOTHING = make("nothing", (), (), ())
"""The number 0 in a product with a value that may be infinite or NaN: it does not vanish."""


def vanishes(t: Term) -> bool:
    """Return whether a term is `NOTHING` or a product with it; its multiples are the same."""
    inner = core(t)
    return inner is NOTHING or (
        inner.op == "product" and any(core(kid) is NOTHING for _, kid in inner.kids)
    )


def _summands(t: Term) -> Sequence[Scaled]:
    if t.op == "sum" and len(t.kids) <= FLAT:
        return t.kids
    if t.op == "bcast" and t.kids[0][1].op == "sum" and len(t.kids[0][1].kids) <= FLAT:
        return [(c, bcast((1, kid), t.shape, t.params)[1]) for c, kid in t.kids[0][1].kids]
    return ((1, t),)


def multiply(parts: Iterable[Scaled], shape: Shape) -> Scaled:
    """Multiply, flattening, sorting and collecting powers."""
    coef: Coef = 1
    powers: dict[Term, int] = {}
    for c, term in parts:
        coef = tidy(coef * c)
        for t, power in _factors(term):
            powers[t] = powers.get(t, 0) + power
    if not coef:
        return zero(shape)
    powers = {t: power for t, power in powers.items() if not is_one(t)}
    terms = sorted(powers, key=lambda t: t.number)
    if not terms:
        return coef, full((1, ONE), shape)[1]
    if any(core(t) is NOTHING for t in terms):
        coef, powers = 1, dict.fromkeys(powers, 1)
    if len(terms) == 1 and powers[terms[0]] == 1:
        return coef, terms[0]
    kids = [(1, t) for t in terms]
    return _hoisted("product", tuple(powers[t] for t in terms), kids, shape, coef)


def _factors(t: Term) -> Iterable[tuple[Term, int]]:
    if t.op == "product" and len(t.kids) <= FLAT:
        return zip((kid for _, kid in t.kids), t.params, strict=True)
    inner = t.kids[0][1] if t.op == "bcast" else t
    if inner is not t and inner.op == "product" and len(inner.kids) <= FLAT:
        wide = [bcast((1, kid), t.shape, t.params)[1] for _, kid in inner.kids]
        return zip(wide, inner.params, strict=True)
    return ((t, 1),)


def power(x: Scaled, exponent: int) -> Scaled:
    """Return an integer power; a negative one is a power of the reciprocal."""
    shape = x[1].shape
    if not exponent:
        return full((1, ONE), shape)
    if exponent < 0:
        return power(reciprocal(x), -exponent)
    coef, t = x
    scaled = multiply([(1, t)], shape)
    kids = [scaled] * exponent if exponent <= 8 else None
    if kids is None:
        return elementwise("integer_pow", exponent, [x], shape)
    c, out = multiply(kids, shape)
    return tidy(c * Fraction(coef) ** exponent), out


def reciprocal(x: Scaled) -> Scaled:
    """Return the reciprocal."""
    coef, t = x
    if not coef:
        return elementwise("reciprocal", (), [x], t.shape)
    if is_one(t):
        return over(1, coef), t
    parts = [
        (1, _hoisted("reciprocal", (), [(1, base)], t.shape, 1)[1])
        for base, exponent in _factors(t)
        for _ in range(exponent)
    ]
    c, out = multiply(parts, t.shape)
    return over(c, coef), out


FOLDED: dict[str, Any] = {
    "max": max,
    "min": min,
    "and": lambda a, b: int(bool(a) and bool(b)),
    "or": lambda a, b: int(bool(a) or bool(b)),
    "zero": lambda x: int(x == 0),
    "ne": lambda x: int(x != 0),
    "negative": lambda x: int(x < 0),
    "positive": lambda x: int(x > 0),
    "nonpositive": lambda x: int(x <= 0),
    "nonnegative": lambda x: int(x >= 0),
    "is_nan": lambda _: 0,
    "clamp": lambda low, x, high: min(max(x, low), high),
}
"""Functions of numbers that are evaluated exactly."""


def elementwise(name: str, params: Any, kids: Sequence[Scaled], shape: Shape) -> Scaled:
    """Apply any other elementwise function; for numbers, evaluate it."""
    logical = name in ("and", "or")
    if (logical and dict(params)["operand"] != "bool") or (name == "ne" and len(kids) == 2):
        # On integers `and` and `or` act on bits; `ne` of two operands is no test of one for zero.
        return _hoisted(name, params, kids, shape, 1)
    if name in FOLDED and all(is_one(t) for _, t in kids):
        return full((FOLDED[name](*(c for c, _ in kids)), ONE), shape)
    if logical:
        for (c, t), rest in ((kids[0], kids[1]), (kids[1], kids[0])):
            if is_one(t) and c in (0, 1):
                return rest if bool(c) == (name == "and") else full((c, ONE), shape)
    return _hoisted(name, params, kids, shape, 1)


def _hoisted(name: str, params: Any, kids: Sequence[Scaled], shape: Shape, coef: Coef) -> Scaled:
    """Apply an elementwise function before a broadcast that all operands share."""
    alike = set(range(len(shape)))
    for _, t in kids:
        alike &= uniform_dims(t)
    if not alike:
        return coef, make(name, params, kids, shape)
    keep = tuple(d for d in range(len(shape)) if d not in alike)
    small = tuple(shape[d] for d in keep)
    inner = [(c, strip(t, alike)) for c, t in kids]
    if name == "sum":
        return times(coef, bcast(add(inner, small), shape, keep))
    if name == "product":
        powers = [(c, t) for (c, t), p in zip(inner, params, strict=True) for _ in range(p)]
        return times(coef, bcast(multiply(powers, small), shape, keep))
    return bcast((coef, make(name, params, inner, small)), shape, keep)


def constant(value: Any) -> Scaled:
    """Return the term of an array: uniform, evenly spaced, or identified by a hash."""
    x = np.asarray(value)
    if not x.ndim:
        return number(x)
    if x.dtype.kind not in "biufcV" or (x.dtype.kind == "V" and x.dtype.names):
        return 1, make("const", (*_digest(x), False), (), x.shape)
    flat = x.reshape(-1)
    if not flat.size or _uniform(flat):
        return full(number(flat[0]) if flat.size else (0, ONE), x.shape)
    if x.dtype.kind in "iu" and x.ndim == 1 and (np.diff(x.astype(object)) == 1).all():
        return add([iota(x.shape, 0), full((int(x[0]), ONE), x.shape)], x.shape)
    infinite = x.dtype.kind not in "biu" and not np.isfinite(x.astype(complex)).all()
    return 1, make("const", (*_digest(x), infinite), (), x.shape)


def has_infinite(t: Term) -> bool:
    """Return whether a constant array has elements that are infinite or NaN."""
    return t.params[-1]


def _uniform(flat: np.ndarray) -> bool:
    first = flat[:1]
    return bool((flat == first).all()) or flat.tobytes() == first.tobytes() * flat.size


def _digest(x: np.ndarray) -> Any:
    data = np.ascontiguousarray(x)
    return str(x.dtype), x.shape, hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest()
