"""Ways to draw values for which special conditions of a program hold: equal numbers, zeros, NaN."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np

from .arguments import How, Special


def special_ways(numbers: Iterable[float]) -> list[How]:
    """Return ways to draw values for which special conditions hold, those with NaN last.

    `numbers` are those that the program compares with.
    """
    finite = [number for number in numbers if math.isfinite(number)]
    common = 0.0, 1.0, *finite
    specials: list[Special] = [*(functools.partial(_one, number) for number in finite)]
    specials += [_tied, _small, _small, *(functools.partial(_add_up_to, n) for n in finite)]
    specials += [functools.partial(_every, n, half) for n in common for half in (True, False)]
    specials += [_large, *(functools.partial(_one, n) for n in (math.nan, math.inf, -math.inf))]
    return [How(special=special) for special in specials]


def _one(number: float, drawn: np.ndarray, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Put a number into one place."""
    if jnp.issubdtype(drawn.dtype, jnp.inexact):
        drawn.flat[rng.integers(drawn.size)] = number
    return drawn


def _every(
    number: float, half: bool, drawn: np.ndarray, dim: int, rng: np.random.Generator
) -> np.ndarray:
    """Make all elements equal, or the first `half`; integers and truth values 0."""
    rows = np.moveaxis(drawn, dim, 0)
    is_float = jnp.issubdtype(drawn.dtype, jnp.inexact)
    rows[: len(rows) // 2 if half else None] = number if is_float else 0
    return drawn


def _small(drawn: np.ndarray, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Return small integers as floats: many are equal, and so are their sums."""
    is_float = jnp.issubdtype(drawn.dtype, jnp.floating)
    return rng.integers(-4, 5, drawn.shape).astype(drawn.dtype) if is_float else drawn


def _add_up_to(number: float, drawn: np.ndarray, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Return small integers and one more number, so that the sum of all is `number`."""
    drawn = _small(drawn, dim, rng)
    if jnp.issubdtype(drawn.dtype, jnp.floating):
        drawn.flat[0] += number - drawn.astype(np.float64).sum()
    return drawn


def _large(drawn: np.ndarray, dim: int, rng: np.random.Generator) -> np.ndarray:
    return drawn * 100 if jnp.issubdtype(drawn.dtype, jnp.inexact) else drawn


def _tied(drawn: np.ndarray, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Make the ends of floats equal along every dimension, with the largest at the corners."""
    if jnp.issubdtype(drawn.dtype, jnp.inexact):
        for rows in (np.moveaxis(drawn, dim, 0) for dim in range(drawn.ndim)):
            rows[-1] = rows[0]
        drawn[np.ix_(*[[0, -1]] * drawn.ndim)] = drawn.max()
    return drawn
