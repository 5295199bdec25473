"""Terms and their coefficients: equal terms are one object."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from .work import spend

Coef = int | Fraction

Scaled = tuple[Coef, "Term"]

Shape = tuple[int, ...]

V = TypeVar("V")


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


def length(coef: Coef) -> int:
    """Return the cost of handling a number: those from many steps have many digits."""
    return 1 + (coef.numerator.bit_length() + coef.denominator.bit_length()) // 32


def make(op: str, params: Any, kids: Sequence[Scaled], shape: Shape) -> Term:
    """Return the unique term with this operation and these operands."""
    spend(1 + sum(length(coef) for coef, _ in kids))
    key = (op, params, tuple(kids), shape)
    term = _KNOWN.get(key)
    if term is None:
        term = _KNOWN[key] = Term(op, params, key[2], shape)
    return term


def symbol(*name: Any, shape: Shape) -> Scaled:
    """Return a symbol, such as an argument or a carried value."""
    return 1, make("symbol", name, (), shape)


ONE = make("one", (), (), ())


def exact(x: Any) -> Coef:
    """Return the rational that a literal stands for: the simplest one that rounds to it."""
    if isinstance(x, int | np.integer):
        return int(x)
    near = Fraction(float(x)).limit_denominator(1 << 20)
    same = type(x)(near.numerator / near.denominator) == x
    return tidy(near if same else Fraction(float(x)))


def tidy(x: Coef) -> Coef:
    """Return an integer as an `int`, which is faster than a `Fraction`."""
    return x.numerator if isinstance(x, Fraction) and x.denominator == 1 else x


def over(a: Coef, b: Coef) -> Coef:
    """Return the quotient of two coefficients."""
    return tidy(Fraction(a) / Fraction(b)) if b != 1 else a


def times(coef: Coef, x: Scaled) -> Scaled:
    """Multiply the coefficient of a term."""
    return tidy(coef * x[0]), x[1]


def number(value: Any) -> Scaled:
    """Return the term of a scalar constant."""
    x: Any = np.asarray(value)[()]
    if isinstance(x, bool | np.bool_):
        return int(x), ONE
    if np.iscomplexobj(x):
        if x.imag:
            return 1, make("literal", complex(x), (), ())
        x = x.real
    if not math.isfinite(float(x)):
        # NaN is not equal to itself, so constants that are not finite are identified by name.
        return 1, make("literal", str(float(x)), (), ())
    return exact(x), ONE


def is_one(t: Term) -> bool:
    """Return whether all elements are 1."""
    return t is ONE or (t.op == "bcast" and not t.params and t.kids[0][1] is ONE)


def not_finite(t: Term) -> bool:
    """Return whether a term is a constant that is infinite, NaN or complex."""
    return core(t).op == "literal"


def is_uniform(t: Term) -> bool:
    """Return whether all elements are the same number."""
    return not t.shape or (t.op == "bcast" and not t.params)


def core(t: Term) -> Term:
    """Return the operand below broadcasts and reshapes."""
    while t.op in ("bcast", "reshape"):
        t = t.kids[0][1]
    return t


def below(t: Term, seen: set[Term] | None = None) -> Iterator[Term]:
    """Yield a term and all its subterms, each once, except those in `seen`."""
    seen = set() if seen is None else seen
    stack = [] if t in seen else [t]
    seen.add(t)
    while stack:
        top = stack.pop()
        yield top
        for _, kid in top.kids:
            if kid not in seen:
                seen.add(kid)
                stack.append(kid)


def operands(t: Term) -> list[Term]:
    """Return the operands without their coefficients."""
    return [kid for _, kid in t.kids]


def bottom_up(
    t: Term,
    known: MutableMapping[Term, V],
    compute: Callable[[Term], V],
    needed: Callable[[Term], Iterable[Term]] = operands,
) -> V:
    """Return what `compute` gives for a term, after the operands that it needs.

    `known` has the results so far. An explicit stack stands in for recursion, since terms may be
    deep.
    """
    stack = [t]
    while stack:
        top = stack[-1]
        pending = [] if top in known else [kid for kid in needed(top) if kid not in known]
        if pending:
            stack += pending
            continue
        stack.pop()
        if top not in known:
            known[top] = compute(top)
    return known[t]
