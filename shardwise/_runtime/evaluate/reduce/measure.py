"""The record of one step: a few numbers per metric, computed on the device.

Every function here takes a metric with `[batch, ...]` values and `valid`, which is false for
padding, and returns a small dictionary of scalars. Padding and masked entries are removed with
`where` before any arithmetic, so a NaN in them has no effect. Non-finite values and weights of real
examples are removed as well, and counted: the sum of the others stays exact, and the host computes
the result by the rules of IEEE arithmetic.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import fold
from .metrics import Max, Mean, Min, Reduction, Sum

Record = dict[str, Any]

NAN, PLUS, MINUS = 1, 2, 4
OF_WEIGHTS = 3
"""The kinds of weights are shifted by this many bits."""


def measure(metric: Any, valid: jax.Array) -> Any:
    """Return the record of one metric over one step; of a metric object, its leaves."""
    if isinstance(metric, Mean | Sum):
        return _measure_sum(metric, valid)
    if isinstance(metric, Min | Max):
        return _measure_extreme(metric, valid)
    return [jnp.asarray(leaf) for leaf in jax.tree.leaves(metric)]


def is_integer(dtype: Any) -> bool:
    return dtype == jnp.bool_ or jnp.issubdtype(dtype, jnp.integer)


def is_exact(metric: Mean | Sum) -> bool:
    """Return whether a sum is one of integers, times integers where there are weights."""
    weights = metric.weights
    return is_integer(metric.values.dtype) and (weights is None or is_integer(weights.dtype))


def _measure_sum(metric: Mean | Sum, valid: jax.Array) -> Record:
    values, weights, counted = _aligned(metric, valid)
    if is_exact(metric):
        values = jnp.where(counted, values, 0)
        if weights is None or weights.dtype == jnp.bool_:
            total = fold.sum_integers(values)
        else:
            total = fold.sum_products(values, weights)
        return {"sum": total} | _weight(weights, counted)
    wide = any(x is not None and x.dtype.itemsize == 8 for x in (values, weights))
    dtype = jnp.dtype(jnp.float64 if wide else jnp.float32)
    terms = fold.split(values, dtype)
    if weights is not None and weights.dtype != jnp.bool_:
        terms = fold.multiply(terms, fold.split(weights, dtype))
    finite = counted & jnp.isfinite(terms[0])
    total = fold.sum_floats((jnp.where(finite, terms[0], 0), jnp.where(finite, terms[1], 0)))
    record = {"sum": total} | _weight(weights, counted)
    return record | _non_finite(terms[0], counted, weights)


def _measure_extreme(metric: Min | Max, valid: jax.Array) -> Record:
    values, _, counted = _aligned(metric, valid)
    is_min = isinstance(metric, Min)
    if is_integer(values.dtype):
        limits = jnp.iinfo(values.dtype)
        rest = limits.max if is_min else limits.min
        record: Record = {}
    else:
        if values.dtype != jnp.float64:
            values = values.astype(jnp.float32)
        rest = jnp.inf if is_min else -jnp.inf
        record = _non_finite(values, counted)
        values = jnp.where(jnp.isnan(values), rest, values)
    values = jnp.where(counted, values, jnp.asarray(rest, values.dtype))
    extreme = jnp.min(values) if is_min else jnp.max(values)
    return {"extreme": extreme, "some": jnp.any(counted)} | record


def _aligned(metric: Reduction, valid: jax.Array) -> tuple[jax.Array, Any, jax.Array]:
    """Return values and weights of one shape, and which entries count."""
    values = _widened(metric.values)
    counted = jnp.broadcast_to(_trailing(valid, values.ndim), values.shape)
    if metric.weights is None:
        return values, None, counted
    weights = _widened(metric.weights, keep_bool=True)
    weights = jnp.broadcast_to(_trailing(weights, values.ndim), values.shape)
    present = weights if weights.dtype == jnp.bool_ else weights != 0
    return values, weights, counted & present


def _trailing(x: jax.Array, ndim: int) -> jax.Array:
    return x.reshape(x.shape + (1,) * (ndim - x.ndim))


def _widened(x: Any, keep_bool: bool = False) -> jax.Array:
    """Convert to integers or floats of at least 32 bits."""
    x = jnp.asarray(x)
    if x.dtype == jnp.bool_:
        return x if keep_bool else x.astype(jnp.int32)
    if x.dtype in (jnp.float64, jnp.int64, jnp.uint64, jnp.uint32):
        return x
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return x.astype(jnp.uint32)
    return x.astype(jnp.int32 if jnp.issubdtype(x.dtype, jnp.integer) else jnp.float32)


def _weight(weights: jax.Array | None, counted: jax.Array) -> Record:
    """Return the sum of the weights; without weights the host knows it from the number of rows."""
    if weights is None:
        return {}
    if is_integer(weights.dtype):
        counts = weights.astype(jnp.int32) if weights.dtype == jnp.bool_ else weights
        total = fold.sum_integers(jnp.where(counted, counts, 0))
    else:
        finite = jnp.where(counted & jnp.isfinite(weights), weights, 0)
        total = fold.sum_floats((finite, jnp.zeros_like(finite)))
    return {"weight": total}


def _non_finite(values: jax.Array, counted: jax.Array, weights: jax.Array | None = None) -> Record:
    """Return the number of rows with a non-finite value, the first of them, and the kinds.

    A product with a non-finite weight is not finite either, so weights need no count of their own.
    """
    size = values.shape[0]
    kinds = _kinds(values)
    if weights is not None and not is_integer(weights.dtype):
        kinds |= _kinds(weights) << OF_WEIGHTS
    kinds = jnp.where(counted, kinds, 0).reshape(size, -1)
    rows = lax.reduce_or(kinds, (1,)) if kinds.shape[1] != 1 else kinds[:, 0]
    places = jnp.where(rows != 0, lax.iota(jnp.int32, size), size)
    return {
        "bad": jnp.sum(rows != 0, dtype=jnp.int32),
        "first": jnp.min(places),
        "kinds": lax.reduce_or(rows, (0,)),
    }


def _kinds(x: jax.Array) -> jax.Array:
    """Return for every entry zero if it is finite, else its kind."""
    kinds = jnp.where(jnp.isnan(x), NAN, jnp.where(x > 0, PLUS, MINUS))
    return jnp.where(jnp.isfinite(x), 0, kinds)
