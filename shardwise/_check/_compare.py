"""When are two results the same, and if they are not, how do they differ.

The rule: two arrays agree when the norm of their difference is at most `rtol` times the norm of
the reference, or when no entry differs by more than `atol`. By default

    rtol = eps (1 + 1 / sqrt(size)) + 8 eps32 sqrt(terms)

where `eps` is that of the coarsest floating-point type the result passed through, `size` its number
of elements, `eps32` that of float32 (finer where the program computes in float64) and `terms` the
largest number of terms the program adds up in one sum, devices included. The norm averages over an
array, so that rounding in bfloat16 (0.1 % a value) stays below the limit and a gradient wrong by
1 % does not. Integers and booleans agree when they are equal.

A result of differences that cancel is mostly rounding. So before a float32 or float64 result is
called wrong, the program is run on one device once more, with each input changed by its last bit:
what moves by that much, 16 times over, is no evidence. (Where it moves by more than rounding can
explain, a decision has flipped, and that is ignored.) With `rtol` or `atol` given, there is no such
second look.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far apart two results may be."""

    rtol: float
    atol: float = 0.0
    shaken: bool = False
    """Whether a difference is looked at again in the light of the inputs' last bits."""


def tolerance(
    eps: float, size: int, terms: int, rtol: float | None, atol: float | None
) -> Tolerance:
    """The rule above, where the user does not say otherwise."""
    fine = min(eps, float(jnp.finfo(jnp.float32).eps))
    own = eps * (1 + 1 / math.sqrt(max(size, 1)))
    default = own + 8 * fine * math.sqrt(max(terms, 1))
    return Tolerance(
        default if rtol is None else rtol,
        0.0 if atol is None else atol,
        shaken=rtol is None and atol is None,
    )


def shaken(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An input with its last bits changed, where it has enough of them."""
    if x.dtype not in (np.float32, np.float64):
        return x
    return (x * (1 + np.finfo(x.dtype).eps * rng.choice([-1, 1], x.shape))).astype(x.dtype)


def moved(got: np.ndarray, want: np.ndarray, scale: float) -> float:
    """By how much a result moves with its inputs' last bits; 0 where that is not rounding."""
    if not _inexact(want) or not np.isfinite(_wide(got)).all():
        return 0.0
    most = float(np.abs(_wide(got) - _wide(want)).max(initial=0))
    return 16 * most if most <= 1e-4 * scale else 0.0


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """The relative difference of two arrays of one shape; infinite where only one is finite."""
    got, want = _wide(got), _wide(want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    gaps = np.where(same, 0, got) - np.where(same, 0, want)
    if not np.isfinite(gaps).all():
        return math.inf
    norm = float(np.linalg.norm(np.where(np.isfinite(want), want, 0)))
    gap = float(np.linalg.norm(gaps))
    return gap / norm if norm else (math.inf if gap else 0.0)


def agree(got: Any, want: Any, limit: Tolerance) -> bool:
    """Whether two arrays of one shape are the same."""
    got, want = np.asarray(got), np.asarray(want)
    if not _inexact(want):
        return bool(np.array_equal(got, want))
    gap = difference(got, want)
    if gap <= limit.rtol:
        return True
    # The comparison is false for NaN and infinity, whatever the tolerance.
    return bool(limit.atol) and bool((np.abs(_wide(got) - _wide(want)) <= limit.atol).all())


def factor(got: np.ndarray, want: np.ndarray, limit: Tolerance) -> float | None:
    """The number by which `got` is too large, if it is one number for the whole array."""
    got, want = _wide(np.asarray(got)).ravel(), _wide(np.asarray(want)).ravel()
    power = float(np.vdot(want, want).real)
    if not power or not np.isfinite(got).all() or not np.isfinite(want).all():
        return None
    times = float((np.vdot(want, got) / power).real)
    near = np.linalg.norm(got - times * want) <= 4 * limit.rtol * abs(times) * math.sqrt(power)
    return times if near and abs(times) > 1e-12 else None


def whose(times: float, sizes: Mapping[str, int], slack: float) -> tuple[str, ...] | None:
    """The axes the product of whose sizes is `times`."""
    names = [name for name, size in sizes.items() if size > 1]
    for count in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, count):
            product = math.prod(sizes[name] for name in chosen)
            if abs(times / product - 1) <= slack:
                return chosen
    return None


def _inexact(x: np.ndarray) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _wide(x: np.ndarray) -> np.ndarray:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return x.astype(np.complex128)
    return x.astype(np.float64)
