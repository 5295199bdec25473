"""One rule for each collective of `jax.lax`.

A rule sees the values of all devices of a group stacked in front, in the order of the axes it was
called with, and gives either one result for all of them (`agrees`) or one for each, stacked again.
What a device sends is counted for the algorithms that devices on a ring use.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a collective does to a stack, and what it sends."""

    apply: Callable[..., Any]
    """`(stack, **params)`: the result; one stack for each operand."""
    agrees: bool
    """Whether all devices of the group get the same."""
    sends: Callable[[int, int], int]
    """`(bytes, n)`: how much of its operand's bytes a device sends, in a group of `n`."""
    fold: Callable[[Any, Any], Any] | None = None
    """For a reduction: how two partial results combine, so that a loop can accumulate them."""
    same: Callable[[Any, int], Any] | None = None
    """For a reduction: its result where all `n` devices hold the same value."""


def wide(dtype: Any) -> Any:
    """The type in which a sum over devices is accumulated.

    XLA adds bfloat16 and float16 across devices in float32 and rounds once.
    """
    return jnp.float32 if dtype in (jnp.bfloat16, jnp.float16) else dtype


def _psum(x: Any) -> Any:
    return jnp.sum(x, axis=0, dtype=wide(x.dtype)).astype(x.dtype)


def _pmax(x: Any) -> Any:
    return lax.reduce_max(x, (0,)) if _ordered(x) else _tree(lax.max, x)


def _pmin(x: Any) -> Any:
    return lax.reduce_min(x, (0,)) if _ordered(x) else _tree(lax.min, x)


def _ordered(x: Any) -> bool:
    return not jnp.issubdtype(x.dtype, jnp.complexfloating)


def _tree(combine: Callable[[Any, Any], Any], x: Any) -> Any:
    out = x[0]
    for part in range(1, x.shape[0]):
        out = combine(out, x[part])
    return out


def _all_gather(x: Any, *, dimension: int, tiled: bool) -> Any:
    x = jnp.moveaxis(x, 0, dimension)
    return merge(x, dimension) if tiled else x


def _psum_scatter(x: Any, *, dimension: int, tiled: bool) -> Any:
    return scatter(_psum(x), x.shape[0], dimension=dimension, tiled=tiled)


def scatter(total: Any, n: int, *, dimension: int, tiled: bool) -> Any:
    """A total, dealt out along one of its dimensions; the parts stacked in front."""
    if tiled:
        total = cut(total, dimension, n)
    return jnp.moveaxis(total, dimension, 0)


def _all_to_all(x: Any, *, split: int, concat: int) -> Any:
    # The primitive is tiled in every case: lax.all_to_all adds and removes the unit dimension.
    n = x.shape[0]
    parts = jnp.moveaxis(cut(x, split + 1, n), split + 1, 0)  # [to, from, ...]
    parts = jnp.moveaxis(parts, 1, concat + 1)
    return merge(parts, concat + 1)


def _ppermute(x: Any, *, perm: tuple[tuple[int, int], ...]) -> Any:
    sender = np.full(x.shape[0], -1)
    for source, target in perm:
        sender[target] = source
    moved = jnp.take(x, np.maximum(sender, 0), axis=0)
    if (sender >= 0).all():
        return moved
    got = (sender >= 0).reshape((-1,) + (1,) * (x.ndim - 1))
    return jnp.where(got, moved, jnp.zeros_like(moved))


def _pbroadcast(x: Any, *, source: int) -> Any:
    return x[source]


def _ragged_all_to_all(x: Any, output: Any, starts: Any, sizes: Any, targets: Any, _: Any) -> Any:
    """Slices of different lengths: `starts`, `sizes` and `targets` are the sender's.

    For every row of a device's result, the last of the slices sent to it that covers the row, or
    else the row of `output`.
    """
    n, rows = x.shape[0], jnp.arange(output.shape[1])

    def sent_to(slices: Any) -> Any:
        return jnp.moveaxis(cut(slices, 1, n), 1, 0).reshape(n, -1)  # [to, from * slices]

    starts, sizes, targets = map(sent_to, (starts, sizes, targets))
    sender = np.repeat(np.arange(n), starts.shape[1] // n)

    def receive(own: Any, start: Any, size: Any, target: Any) -> Any:
        along = rows[:, None] - target[None]  # [row, slice]
        covers = (along >= 0) & (along < size[None])
        last = covers.shape[1] - 1 - jnp.argmax(covers[:, ::-1], axis=1)
        row = start[last] + jnp.take_along_axis(along, last[:, None], axis=1)[:, 0]
        got = x[jnp.asarray(sender)[last], jnp.clip(row, 0, x.shape[1] - 1)]
        hit = covers.any(axis=1).reshape((-1,) + (1,) * (own.ndim - 1))
        return jnp.where(hit, got, own)

    return jax.vmap(receive)(output, starts, sizes, targets)


def _times(x: Any, n: int) -> Any:
    return (x.astype(wide(x.dtype)) * n).astype(x.dtype)


def _all_reduce_bytes(size: int, n: int) -> int:
    """A reduce-scatter and an all-gather of the parts."""
    return -(-2 * (n - 1) * size // n)


def _gather_bytes(size: int, n: int) -> int:
    return (n - 1) * size


def _scatter_bytes(size: int, n: int) -> int:
    return -(-(n - 1) * size // n)


def _pass_on_bytes(size: int, n: int) -> int:
    return size if n > 1 else 0


RULES: dict[str, Rule] = {
    "psum": Rule(_psum, True, _all_reduce_bytes, fold=lax.add, same=_times),
    "pmax": Rule(_pmax, True, _all_reduce_bytes, fold=lax.max, same=lambda x, n: x),
    "pmin": Rule(_pmin, True, _all_reduce_bytes, fold=lax.min, same=lambda x, n: x),
    "all_gather": Rule(_all_gather, True, _gather_bytes),
    "psum_scatter": Rule(_psum_scatter, False, _scatter_bytes),
    "all_to_all": Rule(_all_to_all, False, _scatter_bytes),
    "ppermute": Rule(_ppermute, False, _pass_on_bytes),
    "pbroadcast": Rule(_pbroadcast, True, _pass_on_bytes),
    "ragged_all_to_all": Rule(_ragged_all_to_all, False, _scatter_bytes),
}


def apply(
    name: str, groups: tuple[tuple[int, ...], ...] | None, *stacks: Any, **params: Any
) -> Any:
    """The result of a collective on a stack for each operand, within groups where it has them."""
    rule = RULES[name]
    if groups is None:
        return rule.apply(*stacks, **params)
    if len({len(group) for group in groups}) > 1:
        (stack,) = stacks
        return _unequal(rule, stack, groups, params)
    index = np.array(groups)
    out = jax.vmap(lambda *parts: rule.apply(*parts, **params))(*[stack[index] for stack in stacks])
    if rule.agrees:
        out = jnp.repeat(out[:, None], index.shape[1], axis=1)
    return out.reshape((-1,) + out.shape[2:])[np.argsort(index.reshape(-1))]


def _unequal(rule: Rule, stack: Any, groups: tuple[tuple[int, ...], ...], params: Any) -> Any:
    """A reduction within groups of different sizes."""
    parts = [
        jnp.broadcast_to(out, (len(group), *out.shape))
        for group in groups
        for out in [rule.apply(stack[np.array(group)], **params)]
    ]
    order = np.argsort([member for group in groups for member in group])
    return jnp.concatenate(parts)[order]


def identity(name: str, dtype: Any) -> Any:
    """Where folding starts."""
    if name == "psum":
        return np.zeros((), wide(dtype))
    if jnp.issubdtype(dtype, jnp.floating):
        return np.array(-math.inf if name == "pmax" else math.inf, dtype)
    if dtype == jnp.bool_:
        return np.array(name == "pmin")
    info = jnp.iinfo(dtype)
    return np.array(info.min if name == "pmax" else info.max, dtype)


def foldable(name: str, dtype: Any) -> bool:
    """Whether a reduction of this type has a place to start from."""
    return RULES[name].fold is not None and (
        name == "psum" or not jnp.issubdtype(dtype, jnp.complexfloating)
    )


def merge(x: Any, dimension: int) -> Any:
    """Fold dimension `dimension` into the next one."""
    shape = x.shape
    return x.reshape(
        shape[:dimension] + (shape[dimension] * shape[dimension + 1],) + shape[dimension + 2 :]
    )


def cut(x: Any, dimension: int, n: int) -> Any:
    """The inverse: cut a dimension into `n` parts, a new dimension in front of it."""
    shape = x.shape
    return x.reshape(shape[:dimension] + (n, shape[dimension] // n) + shape[dimension + 1 :])
