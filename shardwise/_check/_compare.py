"""When are two results the same, and if they are not, how do they differ.

The rule: two arrays agree when the norm of their difference is at most `rtol` times the norm of
the reference, plus `atol`. By default

    rtol = 2 eps + 8 eps32 sqrt(terms)

where `eps` is that of the coarsest floating-point type the result passed through, `eps32` that of
float32 (finer where the program computes in float64) and `terms` the largest number of terms the
program adds up in one sum, devices included. The norm averages over an array, so that rounding in
bfloat16 (0.1 % a value) stays below the limit and a gradient wrong by 1 % does not. Integers and
booleans agree when they are equal.
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


def tolerance(eps: float, terms: int, rtol: float | None, atol: float | None) -> Tolerance:
    """The rule above, where the user does not say otherwise."""
    fine = min(eps, float(jnp.finfo(jnp.float32).eps))
    default = 2 * eps + 8 * fine * math.sqrt(max(terms, 1))
    return Tolerance(default if rtol is None else rtol, 0.0 if atol is None else atol)


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
    if limit.atol and math.isfinite(gap):
        return float(np.abs(_wide(got) - _wide(want)).max()) <= limit.atol
    return False


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
