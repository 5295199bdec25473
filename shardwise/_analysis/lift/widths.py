"""Dtypes and their wide counterparts: float64 for every real, complex128 for every complex."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import _jax

FLOAT, COMPLEX = np.dtype(np.float64), np.dtype(np.complex128)

SIMPLEST = 1024
"""The largest denominator of a fraction that a constant is assumed to be."""


def wide_dtype(dtype: Any) -> Any:
    """Return the dtype in which values of `dtype` are evaluated."""
    if jnp.issubdtype(dtype, jnp.floating):
        return FLOAT
    return COMPLEX if jnp.issubdtype(dtype, jnp.complexfloating) else dtype


def is_wider(dtype: Any) -> bool:
    """Return whether values of `dtype` are evaluated in a wider one."""
    return wide_dtype(dtype) != dtype


def eps_of(dtype: Any) -> float:
    """Return the relative spacing of a floating-point dtype; 0 for any other."""
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0


def widened(x: Any, dtype: Any) -> Any:
    """Return a value of the declared `dtype` in its wide one; keys are unchanged."""
    if jnp.issubdtype(dtype, jax.dtypes.extended) or dtype == jax.dtypes.float0:
        return x
    if _jax.is_traced(x):
        return jax.lax.convert_element_type(x, wide_dtype(dtype))
    return np.asarray(x).astype(dtype).astype(wide_dtype(dtype))


def wide(x: Any) -> np.ndarray:
    """Convert to float64 or complex128, so that no difference is lost to a narrow dtype."""
    x = np.asarray(x)
    complex_ = jnp.issubdtype(x.dtype, jnp.complexfloating)
    return x.astype(np.complex128 if complex_ else np.float64)


def as_declared(x: Any, dtype: Any) -> Any:
    """Round a wide value to its declared dtype, if that is narrower."""
    return jax.lax.convert_element_type(x, dtype) if is_wider(dtype) else x


def constant(value: Any) -> Any:
    """Return a constant of a program in its wide dtype.

    A number such as `1 / 3` is rounded when the program is traced. On a mesh of another size it is
    another number, rounded differently: in bfloat16 by up to 0.4 %. So a scalar is replaced by the
    simplest fraction that rounds to it.
    """
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        value = np.asarray(value)
        dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    if not is_wider(dtype):
        return value
    array = np.asarray(value).astype(dtype)
    if array.ndim == 0 and wide_dtype(dtype) == FLOAT:
        return np.asarray(_fraction(float(array.astype(FLOAT)), np.dtype(dtype)), FLOAT)
    return array.astype(wide_dtype(dtype))


@functools.lru_cache(4096)
def _fraction(number: float, dtype: np.dtype) -> float:
    """Return the simplest fraction that rounds to a number in `dtype`, or the number itself."""
    if not np.isfinite(number) or number.is_integer() or abs(number) < 1 / SIMPLEST:
        return number
    below = np.arange(1, SIMPLEST + 1, dtype=FLOAT)
    fractions = np.round(number * below) / below
    equal = np.flatnonzero(fractions.astype(dtype).astype(FLOAT) == number)
    return float(fractions[equal[0]]) if len(equal) else number
