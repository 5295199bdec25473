"""When are two results the same, and if they are not, how do they differ.

The rule, for each element of a floating-point result by itself: it agrees when it differs from the
reference by no more than

    OWN      1024 units in the last place of float32 (0.012 %) of its own size, or one unit of its
             own type where that is coarser, or 1024 units of float64 for float64;
    TIMES    4 times as far as rounding moves it, which is measured (`rounding`); or as far as
             errors 4 times those of rounding move it, which may turn a decision.

The two parts of a complex number are two elements: a small imaginary part beside a large real one
is not lost.

An array of a coarse type may also be off by a little everywhere. So it must not *lean* either: the
multiple of the reference that comes closest to it is 1, give or take 0.012 % or twice what
rounding does to that. Integers, booleans and keys agree when they are equal, or where they are
decided by numbers that round (an `argmax`, a threshold, a whole number that is nearest) and errors
4 times those of rounding move them as far. With `rtol` or `atol` given, an element agrees when it
differs by at most `atol + rtol * |reference|`, and that is all.

NaN and infinity agree with themselves, and with a number only where rounding decides between them:
what it should be, as the root of a difference that cancels, was seen both finite and not; or it was
so on the mesh, and what was finite there agrees.

The search for a cause compares values on the way, whose rounding is not measured, by their norms:
`agree`, with the tolerance

    rtol = eps (1 + 1 / sqrt(size)) + 8 eps32 sqrt(terms)

or an eighth of what is to be explained, if that is less.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

EPS32 = float(np.finfo(np.float32).eps)

UNITS = 1024
"""Units in the last place of its own size by which an element is never called wrong."""

TIMES = 4
"""How many times further than the furthest it was seen to move an element may be off."""

LEANING = 2
"""The same for the closest multiple of an array, which many elements settle."""

PLAINLY = 1000
"""How many times more than that is no matter of rounding at all."""

LEANS_FROM = 16
"""From how many elements on an array is asked whether it leans."""


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far apart two results may be."""

    norm: float
    """Relative to the norm, where values on the way are compared."""
    rtol: float | None = None
    atol: float | None = None
    coarse: bool = False
    """Whether the result comes from a type coarser than float32."""

    @property
    def given(self) -> bool:
        """Whether the user has set it."""
        return self.rtol is not None or self.atol is not None

    def explaining(self, gap: float) -> Tolerance:
        """The same, fine enough to find the cause of a difference."""
        if self.given or not math.isfinite(gap):
            return self
        return dataclasses.replace(self, norm=min(self.norm, max(gap / 8, 4 * EPS32)))


@dataclasses.dataclass(frozen=True)
class Movement:
    """How far rounding was seen to move a result: each element, and its closest multiple.

    Elements are as `in_parts` has them.
    """

    moved: np.ndarray | float = 0.0
    lean: float = 0.0
    seen: bool = False
    """Whether it was looked at at all."""
    turned: np.ndarray | float = 0.0
    """How far errors `TIMES` those of rounding were seen to move each element."""
    unsure: np.ndarray | bool = False
    """Which elements were seen both finite and not."""
    finite: np.ndarray | None = None
    """Which elements were finite when they were first seen."""
    number: np.ndarray | float = math.nan
    """What each element was when it was last seen finite."""
    there: np.ndarray | float = math.nan
    """The same of those that are unsure on a mesh alone, where nothing says what they should be."""

    def __add__(self, other: Movement) -> Movement:
        moved, lean = self.moved + other.moved, self.lean + other.lean
        turned, unsure = self.turned + other.turned, self.unsure | other.unsure
        there = np.where(np.isnan(self.there), other.there, self.there)
        return Movement(moved, lean, self.seen or other.seen, turned, unsure, there=there)

    def __or__(self, other: Movement) -> Movement:
        """Two measurements of the same rounding: the further of them."""
        moved, lean = np.maximum(self.moved, other.moved), max(self.lean, other.lean)
        turned, unsure = np.maximum(self.turned, other.turned), self.unsure | other.unsure
        there = np.where(np.isnan(self.there), other.there, self.there)
        return Movement(moved, lean, self.seen or other.seen, turned, unsure, there=there)

    def on_a_mesh(self) -> Movement:
        """The same of a program on a mesh, which may be wrong."""
        there = np.where(self.unsure, self.number, math.nan)
        return dataclasses.replace(self, unsure=False, there=there)

    def part(self, of: float) -> Movement:
        """The same, less far."""
        moved, turned = of * self.moved, of * self.turned
        return dataclasses.replace(self, moved=moved, lean=of * self.lean, turned=turned)

    def with_turns(self, further: Movement) -> Movement:
        """The same with what was measured with errors `TIMES` those of rounding."""
        unsure = self.unsure | further.unsure
        there = np.where(np.isnan(self.there), further.there, self.there)
        return dataclasses.replace(self, turned=further.moved, unsure=unsure, there=there)

    def as_unsure_as(self, further: Movement) -> Movement:
        """The same, and unsure of what was so with larger errors."""
        return dataclasses.replace(self, unsure=self.unsure | further.unsure)

    def further(self, sample: np.ndarray, want: np.ndarray) -> Movement:
        """The same with one more run with other roundings taken into account."""
        exact, other = in_parts(want), in_parts(sample)
        with np.errstate(all="ignore"):
            gap = other - exact
        gap = np.where(np.isfinite(gap), gap, 0)
        lean = max(self.lean, abs(_multiple(gap, exact)))
        # Not beside what it should be: where a coarse type ends, that is not computed in it.
        first = np.isfinite(other) if self.finite is None else self.finite
        unsure = self.unsure | (np.isfinite(other) != first)
        moved = np.maximum(self.moved, np.abs(gap))
        number = np.where(np.isfinite(other), other, self.number)
        return Movement(moved, lean, seen=True, unsure=unsure, finite=first, number=number)


STILL = Movement()


def tolerance(
    eps: float, size: int, terms: int, rtol: float | None, atol: float | None
) -> Tolerance:
    """The tolerance of a result that passed through types of this `eps`."""
    own = eps * (1 + 1 / math.sqrt(max(size, 1)))
    norm = own + 8 * min(eps, EPS32) * math.sqrt(max(terms, 1))
    return Tolerance(norm if rtol is None else rtol, rtol, atol, coarse=eps > EPS32)


def off(got: Any, want: Any, limit: Tolerance, move: Movement = STILL) -> np.ndarray:
    """Which elements of a result are not what they should be."""
    got, want = np.asarray(got), np.asarray(want)
    if not _inexact(want):
        # Not by their gap alone: two large whole numbers are one and the same in float64.
        turned = np.asarray(move.turned)
        return (got != want) & ~((turned > 0) & (np.abs(wide(got) - wide(want)) <= turned))
    if limit.given:
        got, want = wide(got), wide(want)
        gap, size, same = _gaps(got, want)
        return ~(same | (gap <= (limit.atol or 0) + (limit.rtol or 0) * size))
    wrong = _off(in_parts(got), in_parts(want), _own(want.dtype), limit, move)
    return np.asarray(wrong.any(-1)) if wrong.ndim > want.ndim else wrong


def _off(
    got: np.ndarray, want: np.ndarray, own: float, limit: Tolerance, move: Movement
) -> np.ndarray:
    gap, size, same = _gaps(got, want)
    if same.all():
        return ~same
    far = np.maximum(TIMES * move.moved, move.turned)
    with np.errstate(all="ignore"):
        agrees = np.abs(move.there - want) <= np.maximum(own * size, far)
    unsure = (move.unsure | agrees) & ~(np.isfinite(got) & np.isfinite(want))
    wrong = ~(same | (gap <= own * size) | (gap <= far) | unsure)
    if wrong.any() or not _leans(got, want, limit, move):
        return wrong
    return ~same


def _gaps(got: np.ndarray, want: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How far each element is off, how large it should be, and whether it is that to the bit."""
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        gap, size = np.abs(got - want), np.abs(want)
    # Where only one of the two is finite, no tolerance makes them agree.
    return gap, np.where(np.isfinite(size), size, 0), same


def plainly(got: Any, want: Any, limit: Tolerance, move: Movement) -> bool:
    """Whether some element is off by so much that no other rounding will explain it.

    An element that was not seen to move says nothing yet: a sum of whole numbers is exact, and the
    means that devices make of their parts of it are not. One that moved less than others of its
    array may have come back by chance, as what is left where everything cancels does.
    """
    got, want = np.asarray(got), np.asarray(want)
    if limit.coarse or not _inexact(want):
        return False
    got, want = in_parts(got), in_parts(want)
    with np.errstate(all="ignore"):
        gap = np.abs(got - want)
        most = PLAINLY * TIMES * np.maximum(move.moved, EPS32 * np.abs(want))
        most = np.maximum(most, TIMES * np.max(move.moved, initial=0.0))
        return bool(((gap > most) & np.isfinite(gap) & (np.asarray(move.moved) > 0)).any())


def _own(dtype: Any) -> float:
    """By which part of its own size an element is never called wrong."""
    eps = float(jnp.finfo(dtype).eps)
    return UNITS * eps if eps <= EPS32 else max(1.01 * eps, UNITS * EPS32)


def _leans(got: np.ndarray, want: np.ndarray, limit: Tolerance, move: Movement) -> bool:
    """Whether an array is a little too large, or too small, all over."""
    if not limit.coarse or want.size < LEANS_FROM or not np.isfinite(got).all():
        return False
    power = float(np.vdot(want, want).real)
    if not power or not np.isfinite(power):
        return False
    by_chance = float(np.linalg.norm(move.moved * np.abs(want))) / power
    lean = abs(_multiple(got - want, want))
    return lean > max(UNITS * EPS32, LEANING * max(move.lean, by_chance))


def _multiple(gap: np.ndarray, want: np.ndarray) -> float:
    """By how much the closest multiple of `want` is more than 1."""
    with np.errstate(all="ignore"):
        finite = np.where(np.isfinite(want), want, 0)
        power = float(np.vdot(finite, finite).real)
        return float(np.vdot(finite, gap).real) / power if 0 < power < math.inf else 0.0


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """The relative difference of two arrays of one shape; infinite where only one is finite."""
    got, want = wide(got), wide(want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    gaps = np.where(same, 0, got) - np.where(same, 0, want)
    if not np.isfinite(gaps).all():
        return math.inf
    norm = float(np.linalg.norm(np.where(np.isfinite(want), want, 0)))
    gap = float(np.linalg.norm(gaps))
    return gap / norm if norm else (math.inf if gap else 0.0)


def agree(got: Any, want: Any, limit: Tolerance) -> bool:
    """Whether two arrays of one shape are about the same, by their norms."""
    got, want = np.asarray(got), np.asarray(want)
    if not _inexact(want):
        return bool(np.array_equal(got, want))
    gap = difference(got, want)
    if gap <= limit.norm:
        return True
    # The comparison is false for NaN and infinity, whatever the tolerance.
    return bool(limit.atol) and bool((np.abs(wide(got) - wide(want)) <= limit.atol).all())


def factor(got: np.ndarray, want: np.ndarray, limit: Tolerance) -> float | None:
    """The number by which `got` is too large, if it is one number for the whole array."""
    got, want = wide(np.asarray(got)).ravel(), wide(np.asarray(want)).ravel()
    power = float(np.vdot(want, want).real)
    if not power or not np.isfinite(got).all() or not np.isfinite(want).all():
        return None
    times = float((np.vdot(want, got) / power).real)
    near = np.linalg.norm(got - times * want) <= 4 * limit.norm * abs(times) * math.sqrt(power)
    return times if near and abs(times) > 1e-12 else None


def _inexact(x: np.ndarray) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def wide(x: Any) -> np.ndarray:
    """As float64, or complex128: no difference is lost in narrow numbers."""
    x = np.asarray(x)
    complex_ = jnp.issubdtype(x.dtype, jnp.complexfloating)
    return x.astype(np.complex128 if complex_ else np.float64)


def in_parts(x: Any) -> np.ndarray:
    """The same with the parts of complex numbers as elements, in a last dimension of two."""
    x = wide(x)
    return np.stack([x.real, x.imag], -1) if np.iscomplexobj(x) else x
