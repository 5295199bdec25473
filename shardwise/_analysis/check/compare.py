"""Decide when two results agree, and measure how they differ.

Programs are evaluated in float64, whatever dtypes they declare (`lift`). An element of a
floating-point result agrees when it differs from what it should be by at most a millionth of
itself (1e-10 if declared float64 or complex128), or by no more than it changes when the arguments
are perturbed by 1e-13 of themselves. The second rule covers cancellation, which leaves nothing but
rounding, and decisions at ties.

Integers, booleans and keys agree when they are equal, or when they change under such a
perturbation. NaN and infinity agree with themselves. Values after an operation that runs in its
declared dtype (a bit cast, an FFI call), or compared with a reference that JAX cannot trace, have
the accuracy of that dtype: four units of it, or 64 of float32. With `rtol` or `atol` given, only
`atol + rtol * |reference|` counts.

The search for a cause compares intermediate values by their norms: `agree`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..lift import Run, wide

RTOL = 1e-6
"""The relative difference up to which an element always agrees."""

RTOL64 = 1e-10
"""The same for results declared float64: a thousand times typical rounding errors."""

CHANGE = 2.0**-43
"""The relative perturbation of the arguments that tests the sensitivity of results."""

TIMES = 8
"""How many times the observed change an element may differ by."""

NOTHING = 1e-9
"""Differences below this part of the largest number of the program may be rounding."""

EPS32 = float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """The tolerance within which two results agree."""

    rtol: float | None = None
    atol: float | None = None
    eps: float = 0.0
    """The spacing of the dtype that limits the accuracy of the result; 0 for float64."""
    wide: bool = False
    """Whether the result is declared float64 or complex128."""

    @property
    def is_set(self) -> bool:
        """Whether the user has set it."""
        return self.rtol is not None or self.atol is not None

    @property
    def relative(self) -> float:
        """The relative difference that an element may have."""
        if self.eps:
            return max(RTOL, 4 * self.eps, 64 * EPS32)
        return RTOL64 if self.wide else RTOL

    @property
    def norm(self) -> float:
        """The relative difference of norms, for intermediate values."""
        if self.is_set:
            return self.rtol or 0.0
        return self.relative if self.eps else NOTHING

    @property
    def change(self) -> float:
        """The relative perturbation of the arguments that tests sensitivity."""
        return max(CHANGE, self.eps)


def tolerances(
    base: Run, runs: Sequence[Run], rtol: float | None, atol: float | None, eps: Sequence[float]
) -> list[Tolerance]:
    """Return the tolerance of each result, on all meshes.

    `eps` are the spacings of the dtypes in which the expected values were computed.
    """
    comparable_runs = [run for run in [base, *runs] if run.traced.tree == base.traced.tree]
    eps_by_run = [[run.lifted.eps(atom) for atom in run.body.outs] for run in comparable_runs]
    wide = [dtype in (np.float64, np.complex128) for dtype in base.dtypes]
    rows = zip(zip(*eps_by_run, eps, strict=True), wide, strict=True)
    return [Tolerance(rtol, atol, max(row_eps), is_wide) for row_eps, is_wide in rows]


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a result should be: its value in float64 and its declared dtype."""

    value: np.ndarray
    dtype: Any
    eps: float = 0.0
    """The spacing of the dtype in which it was computed; 0 for float64."""
    index: int = 0
    run: Run | None = None
    """The program that computes it, if that is a reference."""
    is_value: bool = False
    """Whether the user passed it as a value."""


@dataclasses.dataclass(frozen=True)
class Movement:
    """How a result changes when the arguments are perturbed slightly."""

    samples: Sequence[tuple[np.ndarray, np.ndarray]] = ()
    """Values for perturbed arguments, each with the value for the unperturbed ones."""
    scale: float = 0.0
    """The largest movement that may be rounding; larger ones are jumps at a tie."""

    @functools.cached_property
    def allowed(self) -> Any:
        """How far each floating-point element may be off, in the layout of `in_parts`."""
        moved = functools.reduce(np.maximum, (gaps(*pair) for pair in self.samples), np.zeros(()))
        return np.where(TIMES * moved <= self.scale, TIMES * moved, (1 + RTOL) * moved)

    def explains(self, got: np.ndarray) -> Any:
        """Return which integers of `got` are values that they take when perturbed."""
        matches = ((sample == got) & (sample != value) for sample, value in self.samples)
        return functools.reduce(np.logical_or, matches, np.False_)


STILL = Movement()


def off(got: Any, want: Any, limit: Tolerance, movement: Movement = STILL) -> np.ndarray:
    """Return which elements of a result are wrong."""
    got, want = np.asarray(got), np.asarray(want)
    if not is_inexact(want):
        return (got != want) & ~movement.explains(got)
    if limit.is_set:
        gap, size, equal = _gaps(wide(got), wide(want))
        return ~(equal | (gap <= (limit.atol or 0) + (limit.rtol or 0) * size))
    gap, size, equal = _gaps(in_parts(got), in_parts(want))
    with np.errstate(all="ignore"):
        allowed = movement.allowed
        close = (gap <= limit.relative * size) | (gap <= allowed) | np.isinf(allowed)
    wrong = ~(equal | close)
    return np.asarray(wrong.any(-1)) if wrong.ndim > want.ndim else wrong


def _gaps(got: np.ndarray, want: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how far each element is off, how large it should be, and where both are equal."""
    equal = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(all="ignore"):
        gap, size = np.abs(got - want), np.abs(want)
    # Where only one of the two is finite, no tolerance makes them agree.
    return gap, np.where(np.isfinite(size), size, 0), equal


def gaps(got: Any, want: Any) -> np.ndarray:
    """Return how far each element differs: infinity if only one of the two is finite."""
    gap, _, equal = _gaps(in_parts(got), in_parts(want))
    return np.where(equal, 0.0, np.where(np.isnan(gap), np.inf, gap))


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """Return the relative difference of two arrays of one shape; infinite if only one is finite."""
    gap, size, equal = _gaps(wide(got), wide(want))
    with np.errstate(all="ignore"):
        gap, norm = float(np.linalg.norm(np.where(equal, 0, gap))), float(np.linalg.norm(size))
    if not math.isfinite(gap):
        return math.inf
    return gap / norm if norm else (math.inf if gap else 0.0)


def agree(got: Any, want: Any, limit: Tolerance) -> bool:
    """Return whether two arrays of one shape are approximately equal by their norms."""
    got, want = np.asarray(got), np.asarray(want)
    if not is_inexact(want) and not is_inexact(got):
        return bool(np.array_equal(got, want))
    gap = difference(got, want)
    if gap <= limit.norm:
        return True
    # The comparison is false for NaN and infinity, whatever the tolerance.
    return bool(limit.atol) and bool((np.abs(wide(got) - wide(want)) <= limit.atol).all())


def factor(got: np.ndarray, want: np.ndarray, limit: Tolerance) -> float | None:
    """Return the factor by which `got` is too large, if one factor fits the whole array."""
    got, want = wide(np.asarray(got)).ravel(), wide(np.asarray(want)).ravel()
    power = float(np.vdot(want, want).real)
    if not power or not np.isfinite(got).all() or not np.isfinite(want).all():
        return None
    times = float((np.vdot(want, got) / power).real)
    bound = max(4 * limit.norm, RTOL) * abs(times) * math.sqrt(power)
    return times if np.linalg.norm(got - times * want) <= bound and abs(times) > 1e-12 else None


def is_inexact(x: np.ndarray) -> bool:
    """Return whether an array has a floating-point or complex dtype."""
    return jnp.issubdtype(x.dtype, jnp.inexact)


def in_parts(x: Any) -> np.ndarray:
    """Convert like `wide`, with real and imaginary parts in a last dimension of size two."""
    x = wide(x)
    return np.stack([x.real, x.imag], -1) if np.iscomplexobj(x) else x
