"""Accurate sums on the device.

A plain float32 sum of a million values has an error of about 1e-6. Here every partial sum is a pair
of floats, the rounded sum and its rounding error (Knuth's two-sum), so the error of a step is about
1e-13. Integers are summed in 64 bits made of two 32-bit words, which is exact; where they may be
larger than 32 bits, as products are, part by part. All of it needs nothing but 32-bit arithmetic:
it works without `jax_enable_x64` and on any accelerator.

The pairs are combined by slicing an array into sixteen parts and adding those, again and again.
`lax.reduce` is not used because XLA may reorder the arithmetic inside a reducer, and `(a + b) - a`
reordered is just `b`.

Sources: Dekker 1971 for the product, Knuth TAOCP 4.2.2 for the sum.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

Pair = tuple[jax.Array, jax.Array]
Words = dict[int, list[Pair]]
"""A sum of integers in parts of 64 bits, by the number of bits to shift each to the left."""

_WAYS = 16


def _two_sum(a: jax.Array, b: jax.Array) -> Pair:
    """Return the rounded sum and its error, exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _add_floats(a: Pair, b: Pair) -> Pair:
    total, error = _two_sum(a[0], b[0])
    return total, a[1] + (b[1] + error)


def _add_integers(a: Pair, b: Pair) -> Pair:
    low = a[1] + b[1]
    carry = (low < a[1]).astype(jnp.uint32)
    return a[0] + b[0] + carry, low


def _fold(add: Callable[[Pair, Pair], Pair], pair: Pair) -> Pair:
    """Combine the elements of two arrays down to one pair of scalars.

    First along the leading axis, then the rest: flattening first would make XLA recompute the
    position of every element where a mask per row is used, which is ten times slower.
    """
    high, low = _fold_leading(add, pair)
    high, low = _fold_leading(add, (high.reshape(-1), low.reshape(-1)))
    return high[0], low[0]


def _fold_leading(add: Callable[[Pair, Pair], Pair], pair: Pair) -> Pair:
    """Combine along the leading axis until it has length one."""
    high, low = pair
    while (size := high.shape[0]) > 1:
        width = -(-size // _WAYS)
        highs, lows = _parts(high, width), _parts(low, width)
        high, low = highs[0], lows[0]
        for part in zip(highs[1:], lows[1:], strict=True):
            high, low = add((high, low), part)
    return high, low


def _parts(x: jax.Array, width: int) -> list[jax.Array]:
    """Return slices of this width along the leading axis, the last one filled up with zeros."""
    count = -(-x.shape[0] // width)
    missing = count * width - x.shape[0]
    if missing:
        x = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))
    return [lax.slice_in_dim(x, k * width, (k + 1) * width) for k in range(count)]


def sum_floats(pair: Pair) -> Pair:
    """Sum pairs of floats (value, error) to one such pair."""
    return _fold(_add_floats, pair)


def sum_integers(values: jax.Array) -> Words:
    """Sum integers exactly; those of 64 bits by their lower and their upper halves."""
    if values.dtype not in (jnp.int64, jnp.uint64):
        return {0: [_sum_words(values)]}
    upper = (values >> 32).astype(jnp.int32 if values.dtype == jnp.int64 else jnp.uint32)
    return {0: [_sum_words(values.astype(jnp.uint32))], 32: [_sum_words(upper)]}


def sum_products(a: jax.Array, b: jax.Array) -> Words:
    """Sum the products of integers exactly.

    Every factor is cut into parts of 16 bits, since a product of two of them fits 32 bits; those of
    each pair of parts are summed by themselves.
    """
    sums: Words = {}
    for i, x in enumerate(_cut(a)):
        for j, y in enumerate(_cut(b)):
            unsigned = x.dtype == y.dtype == jnp.uint32
            dtype = jnp.uint32 if unsigned else jnp.int32
            product = _sum_words(x.astype(dtype) * y.astype(dtype))
            sums.setdefault(16 * (i + j), []).append(product)
    return sums


def _cut(values: jax.Array) -> list[jax.Array]:
    """Return the digits of integers to the base 2^16, the lowest first; the last one has the
    sign."""
    count = values.dtype.itemsize // 2
    signed = jnp.issubdtype(values.dtype, jnp.signedinteger)
    digits = [(values >> (16 * k)) & 0xFFFF for k in range(count - 1)]
    last = (values >> (16 * (count - 1))).astype(jnp.int32 if signed else jnp.uint32)
    return [*(digit.astype(jnp.uint32) for digit in digits), last]


def _sum_words(values: jax.Array) -> Pair:
    """Sum integers of 32 bits to the high and the low word of an int64, as uint32."""
    high = jnp.where(values < 0, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
    return _fold(_add_integers, (high, values.astype(jnp.uint32)))


def split(values: jax.Array, dtype: jnp.dtype) -> Pair:
    """Write values as pairs of `dtype`, without loss for integers up to 32 bits and for floats."""
    if values.dtype == jnp.bool_ or jnp.issubdtype(values.dtype, jnp.floating):
        high = values.astype(dtype)
        return high, jnp.zeros_like(high)
    high = (values >> 16).astype(dtype) * jnp.asarray(65536, dtype)
    return _two_sum(high, (values & 0xFFFF).astype(dtype))


def multiply(a: Pair, b: Pair) -> Pair:
    """Return the product of two pairs; the rounding error of the leading product is kept."""
    product = a[0] * b[0]
    (a_high, a_low), (b_high, b_low) = _halves(a[0]), _halves(b[0])
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error + (a[0] * b[1] + a[1] * b[0])


def _halves(x: jax.Array) -> Pair:
    """Split a float into two of half its digits, whose products are exact.

    The digits are cut off with a bit mask: Dekker's multiplication can be contracted to a fused
    multiply-add by the compiler, which changes what it gives.
    """
    if x.dtype == jnp.float64:
        mask = jnp.uint64(0xFFFFFFFFF8000000)
        bits = lax.bitcast_convert_type(x, jnp.uint64)
    else:
        mask = jnp.uint32(0xFFFFF000)
        bits = lax.bitcast_convert_type(x, jnp.uint32)
    high = lax.bitcast_convert_type(bits & mask, x.dtype)
    return high, x - high
