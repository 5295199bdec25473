"""Terms: what a value is of the whole, as an expression over the whole arguments.

Terms are hash-consed: equal terms are one object, so that comparing two programs of a hundred
thousand operations is comparing pointers. A value is an exact rational *coefficient* in front of a
term (`Scaled`); scalars move into it, so that a mean over 4 rows of a mean over 8 devices is the
mean over 32. Every maker here puts its result into one normal form: sums and products are flat and
ordered, what is uniform along a dimension is a `bcast`, reshapes of reshapes are one.

This is real arithmetic: rounding, overflow, and the order of a sum do not exist.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import weakref
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

Coef = int | Fraction
Scaled = tuple[Coef, "Term"]
Shape = tuple[int, ...]

FLAT = 48
"""Sums and products of more terms than this stay nested: residual streams grow with the depth."""


class Term:
    """An operation on whole arrays. `kids` are its operands, each with a coefficient."""

    __slots__ = ("__weakref__", "kids", "number", "op", "params", "shape")

    def __init__(self, op: str, params: Any, kids: tuple[Scaled, ...], shape: Shape):
        self.op, self.params, self.kids, self.shape = op, params, kids, shape
        self.number = next(_NUMBERS)

    def __repr__(self) -> str:
        return f"<{self.op}{list(self.shape)} #{self.number}>"


_NUMBERS = itertools.count()
_KNOWN: weakref.WeakValueDictionary[Any, Term] = weakref.WeakValueDictionary()


def make(op: str, params: Any, kids: Sequence[Scaled], shape: Shape) -> Term:
    """The one term with this operation and these operands."""
    key = (op, params, tuple(kids), shape)
    found = _KNOWN.get(key)
    if found is None:
        found = _KNOWN[key] = Term(op, params, key[2], shape)
    return found


def symbol(*name: Any, shape: Shape) -> Scaled:
    """Something of which only the name is known: an argument, what a loop carries."""
    return 1, make("symbol", name, (), shape)


ONE = make("one", (), (), ())


def exact(x: Any) -> Coef:
    """The rational that a literal stands for: the simplest one that rounds to it."""
    if isinstance(x, int | np.integer):
        return int(x)
    near = Fraction(float(x)).limit_denominator(1 << 20)
    same = type(x)(near.numerator / near.denominator) == x
    return tidy(near if same else Fraction(float(x)))


def tidy(x: Coef) -> Coef:
    """A whole number as an int, which is quicker."""
    return x.numerator if isinstance(x, Fraction) and x.denominator == 1 else x


def over(a: Coef, b: Coef) -> Coef:
    """The quotient of two coefficients."""
    return tidy(Fraction(a) / Fraction(b)) if b != 1 else a


def number(value: Any) -> Scaled:
    """A scalar constant."""
    x: Any = np.asarray(value)[()]
    if isinstance(x, bool | np.bool_):
        return int(x), ONE
    if np.iscomplexobj(x):
        if x.imag:
            return 1, make("literal", complex(x), (), ())
        x = x.real
    if not math.isfinite(float(x)):
        # NaN is not equal to itself, so constants that are not numbers go by their names.
        return 1, make("literal", str(float(x)), (), ())
    return exact(x), ONE


def constant(value: Any) -> Scaled:
    """An array of constants: uniform, evenly spaced, or known by its bytes."""
    x = np.asarray(value)
    if not x.ndim:
        return number(x)
    if x.dtype.kind not in "biufcV" or (x.dtype.kind == "V" and x.dtype.names):
        return 1, make("const", _digest(x), (), x.shape)
    flat = x.reshape(-1)
    if not flat.size or _uniform(flat):
        return full(number(flat[0]) if flat.size else (0, ONE), x.shape)
    if x.dtype.kind in "iu" and x.ndim == 1 and (np.diff(x.astype(object)) == 1).all():
        return add([iota(x.shape, 0), full((int(x[0]), ONE), x.shape)], x.shape)
    return 1, make("const", _digest(x), (), x.shape)


def _uniform(flat: np.ndarray) -> bool:
    first = flat[:1]
    return bool((flat == first).all()) or flat.tobytes() == first.tobytes() * flat.size


def _digest(x: np.ndarray) -> Any:
    data = np.ascontiguousarray(x)
    return str(x.dtype), x.shape, hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest()


def full(x: Scaled, shape: Shape) -> Scaled:
    """A scalar, spread over a shape."""
    return bcast(x, shape, ())


def zero(shape: Shape) -> Scaled:
    """Zeros."""
    return 0, full((1, ONE), shape)[1]


def iota(shape: Shape, dimension: int) -> Scaled:
    """The index along a dimension."""
    size = shape[dimension]
    if size == 1:
        return zero(shape)
    return bcast((1, make("iota", (), (), (size,))), shape, (dimension,))


def is_uniform(t: Term) -> bool:
    """Whether all elements are one number."""
    return not t.shape or (t.op == "bcast" and not t.params)


def is_one(t: Term) -> bool:
    """Whether all elements are 1."""
    return t is ONE or (t.op == "bcast" and not t.params and t.kids[0][1] is ONE)


def core(t: Term) -> Term:
    """What is spread or reshaped."""
    while t.op in ("bcast", "reshape"):
        t = t.kids[0][1]
    return t


# --- sums and products


def add(parts: Iterable[Scaled], shape: Shape) -> Scaled:
    """A sum, flat and ordered, like terms taken together."""
    total: dict[Term, Coef] = {}
    for coef, term in parts:
        for c, t in _summands(term):
            total[t] = tidy(total.get(t, 0) + coef * c)
    terms = sorted((t for t, c in total.items() if c), key=lambda t: t.number)
    if not terms:
        return zero(shape)
    if len(terms) == 1:
        return total[terms[0]], terms[0]
    lead = total[terms[0]]
    return _hoisted("sum", (), [(over(total[t], lead), t) for t in terms], shape, lead)


def _summands(t: Term) -> Iterable[Scaled]:
    if t.op == "sum" and len(t.kids) <= FLAT:
        return t.kids
    if t.op == "bcast" and t.kids[0][1].op == "sum" and len(t.kids[0][1].kids) <= FLAT:
        return [(c, bcast((1, kid), t.shape, t.params)[1]) for c, kid in t.kids[0][1].kids]
    return ((1, t),)


def multiply(parts: Iterable[Scaled], shape: Shape) -> Scaled:
    """A product, flat and ordered, with powers."""
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
    """A whole power; a negative one is a power of the reciprocal."""
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
    """One over it."""
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
    "clamp": lambda low, x, high: min(max(x, low), high),
}
"""Functions of numbers that give numbers, exactly."""


def elementwise(name: str, params: Any, kids: Sequence[Scaled], shape: Shape) -> Scaled:
    """Any other function of each element; of numbers, the number."""
    logical = name in ("and", "or")
    if (logical and dict(params)["operand"] != "bool") or (name == "ne" and len(kids) == 2):
        # Of whole numbers these are of their bits; truth values are compared as two.
        return _hoisted(name, params, kids, shape, 1)
    if name in FOLDED and all(is_one(t) for _, t in kids):
        return full((FOLDED[name](*(c for c, _ in kids)), ONE), shape)
    if logical:
        for (c, t), other in ((kids[0], kids[1]), (kids[1], kids[0])):
            if is_one(t) and c in (0, 1):
                return other if bool(c) == (name == "and") else full((c, ONE), shape)
    return _hoisted(name, params, kids, shape, 1)


def _hoisted(name: str, params: Any, kids: Sequence[Scaled], shape: Shape, coef: Coef) -> Scaled:
    """A function of each element, computed before its operands are spread where that is alike."""
    alike = set(range(len(shape)))
    for _, t in kids:
        alike &= uniform_dims(t)
    if not alike:
        return coef, make(name, params, kids, shape)
    keep = tuple(d for d in range(len(shape)) if d not in alike)
    small = tuple(shape[d] for d in keep)
    inner = [(c, strip(t, alike)) for c, t in kids]
    if name == "sum":
        return _times(coef, bcast(add(inner, small), shape, keep))
    if name == "product":
        powers = [(c, t) for (c, t), p in zip(inner, params, strict=True) for _ in range(p)]
        return _times(coef, bcast(multiply(powers, small), shape, keep))
    return bcast((coef, make(name, params, inner, small)), shape, keep)


def _times(coef: Coef, x: Scaled) -> Scaled:
    return tidy(coef * x[0]), x[1]


# --- what is the same along a dimension


def uniform_dims(t: Term) -> set[int]:
    """The dimensions along which nothing changes."""
    if t.op != "bcast":
        return set()
    return set(range(len(t.shape))) - set(t.params)


def strip(t: Term, dims: set[int]) -> Term:
    """Without some of the dimensions along which nothing changes."""
    if not dims:
        return t
    keep = [d for d in range(len(t.shape)) if d not in dims]
    shape = tuple(t.shape[d] for d in keep)
    return bcast((1, t.kids[0][1]), shape, tuple(keep.index(d) for d in t.params))[1]


def bcast(x: Scaled, shape: Shape, dims: Sequence[int]) -> Scaled:
    """Spread over new dimensions; `dims` says where each dimension of `x` goes."""
    coef, t = x
    dims = tuple(dims)
    grown = {i for i, d in enumerate(dims) if t.shape[i] != shape[d]}
    if grown:
        coef, t = reshape((coef, t), tuple(s for i, s in enumerate(t.shape) if i not in grown))
        dims = tuple(d for i, d in enumerate(dims) if i not in grown)
    if t.shape == shape:
        return coef, t
    if t.op == "bcast":
        dims = tuple(dims[d] for d in t.params)
        t = t.kids[0][1]
    return coef, make("bcast", dims, ((1, t),), shape)


# --- other arrangements


def reshape(x: Scaled, shape: Shape) -> Scaled:
    """The same elements in row-major order; dimensions of size 1 are a `bcast`."""
    coef, t = x
    if t.shape == shape:
        return x
    if t.op == "reshape":
        return reshape((coef, t.kids[0][1]), shape)
    if is_uniform(t):
        return full((coef, t.kids[0][1] if t.shape else t), shape)
    if t.op == "bcast" and math.prod(t.shape) == math.prod(t.kids[0][1].shape):
        return reshape((coef, t.kids[0][1]), shape)
    if t.op == "bcast":
        found = _reshape_spread(t, shape)
        if found is not None:
            return coef, found
    core = tuple(size for size in shape if size != 1)
    inner = t if t.shape == core else make("reshape", (), ((1, t),), core)
    return bcast((coef, inner), shape, tuple(d for d, size in enumerate(shape) if size != 1))


def _reshape_spread(t: Term, shape: Shape) -> Term | None:
    """A reshape that keeps apart what is uniform and what is not."""
    groups = matched(t.shape, shape)
    if groups is None:
        return None
    inner, sizes, places = t.kids[0][1], [], []
    for old, new in groups:
        own = [d for d in old if d in t.params]
        if not own:
            continue
        if [t.shape[d] for d in old if t.shape[d] != 1] != [t.shape[d] for d in own]:
            return None
        real = [d for d in new if shape[d] != 1]
        sizes += [shape[d] for d in real]
        places += real
    return bcast(reshape((1, inner), tuple(sizes)), shape, places)[1]


def matched(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]] | None:
    """The smallest groups of dimensions that have the same number of elements in both shapes."""
    if 0 in old or 0 in new:
        return None
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        left, right, a, b = [], [], 1, 1
        while True:
            if a <= b and i < len(old) and (a < b or not left):
                a, left, i = a * old[i], [*left, i], i + 1
            elif j < len(new) and (b < a or not right):
                b, right, j = b * new[j], [*right, j], j + 1
            else:
                break
        if a != b:
            return None
        while i < len(old) and old[i] == 1 and j == len(new):
            left, i = [*left, i], i + 1
        groups.append((left, right))
    return groups


def transpose(x: Scaled, order: Sequence[int]) -> Scaled:
    """The dimensions in another order."""
    coef, t = x
    order = tuple(order)
    if order == tuple(range(len(order))):
        return x
    shape = tuple(t.shape[d] for d in order)
    if t.op == "transpose":
        return transpose((coef, t.kids[0][1]), [t.params[d] for d in order])
    if t.op == "bcast":
        place = [order.index(d) for d in t.params]
        ranks = sorted(range(len(place)), key=place.__getitem__)
        inner = transpose((1, t.kids[0][1]), ranks)
        return _times(coef, bcast(inner, shape, sorted(place)))
    return coef, make("transpose", order, ((1, t),), shape)


def reduce(name: str, x: Scaled, axes: Iterable[int]) -> Scaled:
    """A reduction: `sum`, `max`, `min` and the like. A uniform dimension is counted, not added."""
    coef, t = x
    axes = set(axes)
    if not axes:
        return x
    shape = tuple(s for d, s in enumerate(t.shape) if d not in axes)
    if name == "sum" and not coef:
        return zero(shape)
    alike = uniform_dims(t) & axes
    if alike and name in ("sum", "max", "min", "and", "or"):
        count = math.prod(t.shape[d] for d in alike) if name == "sum" else 1
        keep = [d for d in range(len(t.shape)) if d not in alike]
        inner = tidy(coef * count), strip(t, alike)
        return reduce(name, inner, [keep.index(d) for d in axes - alike])
    if t.op == "bcast" and name in ("sum", "max", "min", "and", "or"):
        inner = reduce(name, (coef, t.kids[0][1]), [t.params.index(d) for d in axes])
        left = [d for d in range(len(t.shape)) if d not in axes]
        places = [left.index(d) for d in t.params if d not in axes]
        return bcast(inner, shape, places)
    if t.op == "transpose":
        inner = reduce(name, (coef, t.kids[0][1]), [t.params[d] for d in axes])
        left = [t.params[d] for d in range(len(t.shape)) if d not in axes]
        return transpose(inner, [sorted(left).index(d) for d in left])
    if t.op == "reshape" and len(axes) == len(t.shape):
        return reduce(name, (coef, t.kids[0][1]), range(len(t.kids[0][1].shape)))
    nests = name == "sum" or (name in ("max", "min") and coef > 0) or coef == 1
    if t.op == f"reduce_{name}" and nests:
        inside = t.kids[0][1]
        left = [d for d in range(len(inside.shape)) if d not in t.params]
        whole = {*t.params, *(left[d] for d in axes)}
        return reduce(name, (tidy(coef * t.kids[0][0]), inside), whole)
    outside = coef if name == "sum" else 1
    inner = (1, t) if name == "sum" else (coef, t)
    return outside, make(f"reduce_{name}", tuple(sorted(axes)), (inner,), shape)


def linear(name: str, params: Any, x: Scaled, shape: Shape) -> Scaled:
    """A linear function of one operand: the coefficient passes through."""
    coef, t = x
    if not coef:
        return zero(shape)
    return coef, make(name, params, ((1, t),), shape)


def function(name: str, params: Any, kids: Sequence[Scaled], shape: Shape) -> Scaled:
    """A function of whole arrays of which nothing more is known."""
    return 1, make(name, params, kids, shape)


# --- parts of arrays


def cut(x: Scaled, d: int, start: int, size: int, stride: int = 1) -> Scaled:
    """A slice along one dimension; slices of slices are one, and so are those of concatenations."""
    coef, t = x
    if (start, size, stride) == (0, t.shape[d], 1):
        return x
    shape = (*t.shape[:d], size, *t.shape[d + 1 :])
    if not coef:
        return zero(shape)
    if t.op == "bcast":
        if d not in t.params:
            return coef, make("bcast", t.params, t.kids, shape)
        inner = cut((coef, t.kids[0][1]), t.params.index(d), start, size, stride)
        return bcast(inner, shape, t.params)
    if t.op == "iota":
        spaced = iota(shape, 0)
        return add(
            [(tidy(coef * stride * spaced[0]), spaced[1]), full((coef * start, ONE), shape)], shape
        )
    if t.op == "slice" and t.params[0] == d and stride == 1:
        _, first, step = t.params
        return cut((coef, t.kids[0][1]), d, first + start * step, size, step)
    if t.op == "slice" and t.params[0] > d:
        # Slices along several dimensions stand in the order of the dimensions.
        inner = cut((coef, t.kids[0][1]), d, start, size, stride)
        return cut(inner, t.params[0], t.params[1], t.shape[t.params[0]], t.params[2])
    if t.op == "concatenate" and t.params == d and stride == 1:
        return _cut_pieces(x, d, start, size, shape)
    if t.op == "reshape" and stride == 1:
        found = _cut_reshape(t, d, start, size, shape)
        if found is not None:
            return coef, found
    return coef, make("slice", (d, start, stride), ((1, t),), shape)


def _cut_pieces(x: Scaled, d: int, start: int, size: int, shape: Shape) -> Scaled:
    coef, t = x
    pieces, at = [], 0
    for c, kid in t.kids:
        low, high = max(start, at), min(start + size, at + kid.shape[d])
        if low < high:
            pieces.append(cut((tidy(coef * c), kid), d, low - at, high - low))
        at += kid.shape[d]
    return concatenate(pieces, d, shape)


def _cut_reshape(t: Term, d: int, start: int, size: int, shape: Shape) -> Term | None:
    """A slice along the first dimension of a group that a reshape makes is a slice before it."""
    inner = t.kids[0][1]
    for old, new in matched(inner.shape, t.shape) or ():
        if new and new[0] == d and len(old) == 1:
            step = math.prod(t.shape[e] for e in new[1:])
            return reshape(cut((1, inner), old[0], start * step, size * step), shape)[1]
    return None


def concatenate(pieces: Sequence[Scaled], d: int, shape: Shape) -> Scaled:
    """Behind each other; neighbours that are slices of one array are put together again."""
    flat: list[Scaled] = []
    for coef, t in pieces:
        if t.op == "concatenate" and t.params == d:
            flat += [(tidy(coef * c), kid) for c, kid in t.kids]
        else:
            flat.append((coef, t))
    joined: list[Scaled] = []
    for one in flat:
        both = _neighbours(joined[-1], one, d) if joined else None
        joined = [*joined[:-1], both] if both is not None else [*joined, one]
    if len(joined) == 1:
        return joined[0]
    lead = next((c for c, _ in joined if c), 0)
    if not lead:
        return zero(shape)
    return lead, make("concatenate", d, [(over(c, lead), t) for c, t in joined], shape)


def _neighbours(a: Scaled, b: Scaled, d: int) -> Scaled | None:
    """Two pieces as one, if they lie side by side in one array."""
    (coef, s), (other, t) = a, b
    size = s.shape[d] + t.shape[d]
    if not coef and not other:
        return zero((*s.shape[:d], size, *s.shape[d + 1 :]))
    if coef != other:
        return None
    if s.op == t.op == "bcast" and s.params == t.params and s.kids == t.kids and d not in s.params:
        return coef, make("bcast", s.params, s.kids, (*s.shape[:d], size, *s.shape[d + 1 :]))
    if s.op == t.op == "bcast" and s.params == t.params and d in s.params:
        both = _neighbours((1, s.kids[0][1]), (1, t.kids[0][1]), s.params.index(d))
        shape = (*s.shape[:d], size, *s.shape[d + 1 :])
        return None if both is None else bcast((tidy(coef * both[0]), both[1]), shape, s.params)
    if not (s.op == t.op == "slice" and s.kids == t.kids and s.params[0] == t.params[0] == d):
        return None
    if s.params[2] != 1 or t.params != (d, s.params[1] + s.shape[d], 1):
        return None
    return cut((coef, s.kids[0][1]), d, s.params[1], size)
