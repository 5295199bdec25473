"""One rule for each collective of `jax.lax`.

A rule takes the values of all devices of a group, stacked in front in the order of the axes of the
call, and returns either one result for all of them (`agrees`) or one for each, stacked again. The
bytes that a device sends are counted for ring algorithms.

Reductions round as XLA does for CPU devices: one device after the other, in the order of the group,
starting from the neutral element, in the type of `wide`. So float16 can overflow on the way, a NaN
is never the largest, and of equal zeros the first one stays.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._base.errors import UnsupportedError
from .._jax.shapes import moved, picked, reshaped
from .._jax.sums import sum_stack


@dataclasses.dataclass(frozen=True)
class CollectiveRule:
    """What a collective computes from a stack, and what it sends."""

    apply: Callable[..., Any]
    """`(stack, **params)`: the result; one stack for each operand."""
    agrees: bool
    """Whether all devices of the group get the same result."""
    sends: Callable[[int, int], int]
    """`(bytes, n)`: how many of its operand's bytes a device sends, in a group of `n`."""
    fold: Callable[[Any, Any], Any] | None = None
    """For a reduction: how two partial results combine, so that a loop can accumulate them."""
    same: Callable[[Any, int], Any] | None = None
    """For a reduction: its result if all `n` devices have the same value."""


def wide(dtype: Any) -> Any:
    """Return the dtype in which a reduction over devices is computed; it is rounded once, at the
    end."""
    if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize > 2:
        return dtype
    ranges_as_far = dtype.name in ("bfloat16", "float8_e8m0fnu")
    return jnp.dtype(jnp.float32 if ranges_as_far else jnp.float16)


def is_order_sensitive(name: str, dtype: Any) -> bool:
    """Return whether the order of a sum affects more than its last digits."""
    return name == "psum" and wide(dtype) == jnp.float16


def widen(x: Any) -> Any:
    """Convert a value to the type of `wide`, rounded to its own type first.

    XLA may leave out a rounding between two wider types, and does not across a collective.
    """
    if x.dtype == jnp.bfloat16:
        return lax.reduce_precision(x.astype(jnp.float32), exponent_bits=8, mantissa_bits=7)
    dtype = wide(x.dtype)
    return x if dtype == x.dtype else lax.optimization_barrier(x).astype(dtype)


def narrow(x: Any, dtype: Any) -> Any:
    """Convert back from the type of `wide`, rounding here."""
    if x.dtype == dtype:
        return x
    if dtype == jnp.bfloat16:
        return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7).astype(dtype)
    return lax.optimization_barrier(x.astype(dtype))


def reduce(name: str, x: Any) -> Any:
    """Reduce a stack, in the type of `wide`."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and name != "psum":
        return functools.reduce(RULES[name].fold, x)  # pyright: ignore[reportArgumentType]
    if is_order_sensitive(name, x.dtype) or (
        name != "psum" and jnp.issubdtype(x.dtype, jnp.floating)
    ):
        start = lax.full(x.shape[1:], identity(name, x.dtype))
        return accumulate(name, start, x)
    if name == "psum":
        if x.dtype == jnp.bool_:
            return jnp.sum(x, axis=0, dtype=x.dtype)
        return sum_stack(widen(x))
    return (lax.reduce_max if name == "pmax" else lax.reduce_min)(x, (0,))


def accumulate(name: str, total: Any, x: Any) -> Any:
    """Add a stack to a total, in the type of `wide`."""
    fold = RULES[name].fold
    assert fold is not None
    if is_order_sensitive(name, x.dtype):
        return lax.scan(lambda total, part: (fold(total, widen(part)), None), total, x)[0]
    if name != "psum" and jnp.issubdtype(x.dtype, jnp.floating):
        return lax.reduce(
            lax.concatenate([total[None], widen(x)], 0), identity(name, x.dtype), fold, (0,)
        )
    return fold(total, reduce(name, x))


def _reduction(name: str) -> Callable[[Any], Any]:
    return lambda x: narrow(reduce(name, x), x.dtype)


def _larger(a: Any, b: Any) -> Any:
    return (
        lax.select(lax.gt(b, a), b, a) if jnp.issubdtype(a.dtype, jnp.floating) else lax.max(a, b)
    )


def _smaller(a: Any, b: Any) -> Any:
    return (
        lax.select(lax.lt(b, a), b, a) if jnp.issubdtype(a.dtype, jnp.floating) else lax.min(a, b)
    )


def _sum(x: Any) -> Any:
    return narrow(_from_zero(reduce("psum", x)), x.dtype)


def alone(name: str, x: Any) -> Any:
    """Reduce the value of one device, in the type of `wide`; XLA ignores a NaN here too."""
    return _from_zero(widen(x)) if name == "psum" else widen(reduce(name, x[None]))


def _from_zero(total: Any) -> Any:
    """Return a sum as if it started from 0, so that it is never -0. XLA itself drops the 0."""
    if not jnp.issubdtype(total.dtype, jnp.floating):
        return total
    zero = lax.full_like(total, 0)
    return lax.select(lax.eq(total, zero), zero, total)


def _all_gather(x: Any, *, dimension: int, tiled: bool) -> Any:
    x = moved(x, 0, dimension)
    return merge(x, dimension) if tiled else x


def _psum_scatter(x: Any, *, dimension: int, tiled: bool) -> Any:
    return scatter(_sum(x), x.shape[0], dimension=dimension, tiled=tiled)


def scatter(total: Any, n: int, *, dimension: int, tiled: bool) -> Any:
    """Split a total along one of its dimensions; the parts are stacked in front."""
    if tiled:
        total = cut(total, dimension, n)
    return moved(total, dimension, 0)


def _all_to_all(x: Any, *, split: int, concat: int) -> Any:
    # The primitive is tiled in every case: lax.all_to_all adds and removes the unit dimension.
    n = x.shape[0]
    parts = moved(cut(x, split + 1, n), split + 1, 0)  # [to, from, ...]
    parts = moved(parts, 1, concat + 1)
    return merge(parts, concat + 1)


def _ppermute(x: Any, *, perm: tuple[tuple[int, int], ...]) -> Any:
    sender = np.full(x.shape[0], -1)
    for source, target in perm:
        sender[target] = source
    out = picked(x, np.maximum(sender, 0))
    if (sender >= 0).all():
        return out
    is_received = lax.broadcast_in_dim(sender >= 0, x.shape, (0,))
    return lax.select(is_received, out, lax.full_like(out, 0))


def _pbroadcast(x: Any, *, source: int) -> Any:
    return lax.index_in_dim(x, source, keepdims=False)


def _ragged_all_to_all(x: Any, output: Any, starts: Any, sizes: Any, targets: Any, _: Any) -> Any:
    """Exchange slices of different lengths; `starts`, `sizes` and `targets` are the sender's.

    Each row of a device's result comes from the last slice sent to it that covers the row, or else
    from `output`.
    """
    n, rows = x.shape[0], jnp.arange(output.shape[1])

    def sent_to(slices: Any) -> Any:
        slices = slices.astype(rows.dtype)
        return jnp.moveaxis(cut(slices, 1, n), 1, 0).reshape(n, -1)  # [to, from * slices]

    starts, sizes, targets = map(sent_to, (starts, sizes, targets))
    sender = np.repeat(np.arange(n), starts.shape[1] // n)

    def receive(current: Any, start: Any, size: Any, target: Any) -> Any:
        along = rows[:, None] - target[None]  # [row, slice]
        covers = (along >= 0) & (along < size[None])
        last = covers.shape[1] - 1 - jnp.argmax(covers[:, ::-1], axis=1)
        row = start[last] + jnp.take_along_axis(along, last[:, None], axis=1)[:, 0]
        received = x[jnp.asarray(sender)[last], jnp.clip(row, 0, x.shape[1] - 1)]
        is_covered = covers.any(axis=1).reshape((-1,) + (1,) * (current.ndim - 1))
        return jnp.where(is_covered, received, current)

    return jax.vmap(receive)(output, starts, sizes, targets)


def exchange_in_a_batch(where: str = "") -> UnsupportedError:
    """Return the error for a `vmap` of a ragged exchange that JAX has no rule for."""
    return UnsupportedError(
        "vmap of ragged_all_to_all with offsets or sizes that are not batched",
        where=where,
        rule="JAX batches this exchange only if its four offsets and sizes are batched too.",
        remedy="batch them: jnp.broadcast_to(sizes, (batch, *sizes.shape)) with in_axes=0; or "
        "loop over the batch: jax.lax.map.",
    )


def no_derivative(name: str, where: str = "") -> UnsupportedError:
    """Return the error for a `pmax` or `pmin` that is differentiated."""
    return UnsupportedError(
        f"a {name} is differentiated, and JAX has no derivative of it",
        where=where,
        rule=f"The operand of a {name} must be constant for the derivative. A stop_gradient around "
        f"the {name} is too late: JAX differentiates its operand first.",
        remedy=f"put it inside: jax.lax.{name}(jax.lax.stop_gradient(x), axis). In a softmax or a "
        "logsumexp the gradient stays exact, because the maximum cancels.",
    )


def _times(x: Any, n: int) -> Any:
    if not is_order_sensitive("psum", x.dtype):
        return narrow(_from_zero(widen(x) * n), x.dtype)
    part = widen(x)
    start = jnp.zeros_like(part)
    total = lax.fori_loop(0, n, lambda _, total: total + part, start)
    return narrow(_from_zero(total), x.dtype)


def _alone(name: str) -> Callable[[Any, int], Any]:
    return lambda x, n: _reduction(name)(x[None])


def _all_reduce_bytes(size: int, n: int) -> int:
    """Count a reduce-scatter and an all-gather of the parts."""
    return -(-2 * (n - 1) * size // n)


def _gather_bytes(size: int, n: int) -> int:
    return (n - 1) * size


def _scatter_bytes(size: int, n: int) -> int:
    return -(-(n - 1) * size // n)


def _pass_on_bytes(size: int, n: int) -> int:
    return size if n > 1 else 0


RULES: dict[str, CollectiveRule] = {
    "psum": CollectiveRule(_sum, True, _all_reduce_bytes, fold=lax.add, same=_times),
    "pmax": CollectiveRule(
        _reduction("pmax"), True, _all_reduce_bytes, fold=_larger, same=_alone("pmax")
    ),
    "pmin": CollectiveRule(
        _reduction("pmin"), True, _all_reduce_bytes, fold=_smaller, same=_alone("pmin")
    ),
    "all_gather": CollectiveRule(_all_gather, True, _gather_bytes),
    "psum_scatter": CollectiveRule(_psum_scatter, False, _scatter_bytes),
    "all_to_all": CollectiveRule(_all_to_all, False, _scatter_bytes),
    "ppermute": CollectiveRule(_ppermute, False, _pass_on_bytes),
    "pbroadcast": CollectiveRule(_pbroadcast, True, _pass_on_bytes),
    "ragged_all_to_all": CollectiveRule(_ragged_all_to_all, False, _scatter_bytes),
}


def apply(
    name: str, groups: tuple[tuple[int, ...], ...] | None, *stacks: Any, **params: Any
) -> Any:
    """Apply a collective to a stack for each operand, within groups if it has them."""
    rule = RULES[name]
    if groups is None:
        return rule.apply(*stacks, **params)
    if len({len(group) for group in groups}) > 1:
        (stack,) = stacks
        return _unequal(rule, stack, groups, params)
    index = np.array(groups)

    def in_groups(stack: Any) -> Any:
        return reshaped(picked(stack, index.reshape(-1)), (*index.shape, *stack.shape[1:]))

    out = jax.vmap(lambda *parts: rule.apply(*parts, **params))(
        *[in_groups(stack) for stack in stacks]
    )
    if rule.agrees:
        shape = (out.shape[0], index.shape[1], *out.shape[1:])
        out = lax.broadcast_in_dim(out, shape, (0, *range(2, len(shape))))
    return picked(out.reshape((-1,) + out.shape[2:]), np.argsort(index.reshape(-1)))


def _unequal(
    rule: CollectiveRule, stack: Any, groups: tuple[tuple[int, ...], ...], params: Any
) -> Any:
    """Reduce within groups of different sizes."""
    parts = [
        jnp.broadcast_to(out, (len(group), *out.shape))
        for group in groups
        for out in [rule.apply(picked(stack, group), **params)]
    ]
    order = np.argsort([member for group in groups for member in group])
    return picked(lax.concatenate(parts, 0), order)


def sends(name: str, size: int, n: int) -> int:
    """Return the bytes that a device sends of an operand of `size` bytes, in a group of `n`.

    `all_reduce` is any reduction over devices; `jax.lax` has names for three of them.
    """
    return RULES["psum" if name == "all_reduce" else name].sends(size, n)


def identity(name: str, dtype: Any) -> Any:
    """Return the value from which folding starts."""
    if name == "psum":
        return np.zeros((), wide(dtype))
    if jnp.issubdtype(dtype, jnp.floating):
        return np.array(-math.inf if name == "pmax" else math.inf, wide(dtype))
    if dtype == jnp.bool_:
        return np.array(name == "pmin")
    info = jnp.iinfo(dtype)
    return np.array(info.min if name == "pmax" else info.max, dtype)


def foldable(name: str, dtype: Any) -> bool:
    """Return whether a reduction of this dtype has a neutral element."""
    return RULES[name].fold is not None and (
        name == "psum" or not jnp.issubdtype(dtype, jnp.complexfloating)
    )


def merge(x: Any, dimension: int) -> Any:
    """Merge dimension `dimension` with the next one."""
    shape = x.shape
    size = shape[dimension] * shape[dimension + 1]
    return lax.reshape(x, (*shape[:dimension], size, *shape[dimension + 2 :]))


def cut(x: Any, dimension: int, n: int) -> Any:
    """Split a dimension into `n` parts, with a new dimension in front of it."""
    shape = x.shape
    part = shape[dimension] // n
    return lax.reshape(x, (*shape[:dimension], n, part, *shape[dimension + 1 :]))
