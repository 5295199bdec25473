"""The bits of floating-point numbers, as whole numbers to count up and down with."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


def bits_of(x: Any) -> Any:
    """The bits of numbers: those of a larger one are a larger whole number."""
    if (bits := jnp.finfo(x.dtype).bits) >= 8:
        return lax.bitcast_convert_type(x, np.dtype(f"int{bits}"))
    # XLA cannot take those of half a byte for a number.
    wide = lax.convert_element_type(x, np.float32)
    rank = sum((abs(wide) >= size).astype(np.int8) for size in _magnitudes(x.dtype)[1:])
    return jnp.where(wide < 0, rank + np.int8(-128), rank)


def of_bits(bits: Any, dtype: Any) -> Any:
    """The numbers that have these bits; past the largest of a small type comes the largest."""
    if jnp.finfo(dtype).bits >= 8:
        return lax.bitcast_convert_type(bits, dtype)
    sizes = jnp.asarray(_magnitudes(dtype))
    size = sizes[jnp.clip(bits & np.int8(127), 0, len(sizes) - 1)]
    return lax.convert_element_type(jnp.where(bits < 0, -size, size), dtype)


def _magnitudes(dtype: Any) -> np.ndarray:
    """The numbers of a type of less than a byte, without signs."""
    count = 1 << (jnp.finfo(dtype).bits - 1)
    return np.arange(count, dtype=np.uint8).view(dtype).astype(np.float32)
