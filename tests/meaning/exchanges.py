"""One small program for each collective, for loops and for branches, over random cuts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from .cases import ANY
from .draw import KINDS, Draw, integers, natural

EXCHANGES: dict[str, Callable[[Draw], Any]] = {}


def exchange(name: str) -> Callable[..., Any]:
    """Enter a program."""

    def enter(f: Callable[[Draw], Any]) -> Callable[[Draw], Any]:
        EXCHANGES[name] = f
        return f

    return enter


def _over(d: Draw) -> Any:
    names = d.axes(list(d.mesh)) or [d.pick(list(d.mesh))]
    return tuple(names) if len(names) > 1 else names[0]


def _count(d: Draw, axes: Any) -> int:
    names = axes if isinstance(axes, tuple) else (axes,)
    count = 1
    for name in names:
        count *= d.mesh[name]
    return count


@exchange("psum")
def _(d: Draw) -> Any:
    x, over = d.operand(*d.shape(), kinds=(*ANY, "owed max")), _over(d)
    return lax.psum(x, over), lax.psum(lax.psum(x, over), over), lax.pmean(d.operand(3), over)


for name, f in (("pmax", lax.pmax), ("pmin", lax.pmin)):

    def extreme(d: Draw, f: Any = f) -> Any:
        kinds = (*ANY, "owed max", "owed max")
        x = d.operand(*d.shape(), kinds=kinds)
        return f(x, _over(d)), f(-d.operand(3, kinds=kinds), _over(d)), f(x.max(), _over(d))

    exchange(name)(extreme)


@exchange("all_gather")
def _(d: Draw) -> Any:
    x, over = d.operand(2, 3, kinds=ANY), _over(d)
    at = d.pick([0, 1])
    return (
        lax.all_gather(x, over, axis=at, tiled=True),
        lax.all_gather(x, over, axis=at),
        lax.all_gather(d.operand(2, 3), over, axis=2),
    )


@exchange("psum_scatter")
def _(d: Draw) -> Any:
    over = _over(d)
    n = _count(d, over)
    x, y = d.operand(2 * n, 3, kinds=ANY), d.operand(3, n, kinds=ANY)
    tiled = lax.psum_scatter(x, over, scatter_dimension=0, tiled=True)
    return tiled, lax.psum_scatter(y, over, scatter_dimension=1)


@exchange("all_to_all")
def _(d: Draw) -> Any:
    over = _over(d)
    n = _count(d, over)
    x, y = d.operand(2 * n, 3, kinds=ANY), d.operand(2 * n, n)
    return (
        lax.all_to_all(x, over, 0, 1, tiled=True),
        lax.all_to_all(x, over, 0, 0, tiled=True),
        lax.all_to_all(y, over, 1, 0),
        lax.all_to_all(y, over, 1, 1, tiled=True),
    )


@exchange("ppermute")
def _(d: Draw) -> Any:
    over = _over(d)
    n = _count(d, over)
    x = d.operand(2, 3, kinds=ANY)
    order = d.random.sample(range(n), n)
    some = [(i, j) for i, j in enumerate(order) if d.random.random() < 0.7]
    turned = lax.ppermute(x, over, list(enumerate(order)))
    return turned, lax.ppermute(turned, over, list(enumerate(order))), lax.ppermute(x, over, some)


@exchange("pbroadcast")
def _(d: Draw) -> Any:
    axis = d.pick(list(d.mesh))
    return lax.pbroadcast(d.operand(2, 3, kinds=ANY), axis, d.mesh[axis] - 1)


@exchange("groups")
def _(d: Draw) -> Any:
    axis = d.pick(list(d.mesh))
    whole = d.random.sample(range(d.mesh[axis]), d.mesh[axis])
    x = d.operand(2, 3)
    return (
        lax.psum(x, axis, axis_index_groups=[whole]),
        lax.psum(x, axis, axis_index_groups=[[i] for i in whole]),
        lax.all_gather(x, axis, axis_index_groups=[whole], tiled=True),
    )


@exchange("axis_index")
def _(d: Draw) -> Any:
    over = _over(d)
    i, n = lax.axis_index(over), _count(d, over)
    x = d.operand(2 * n, 3)
    at = i * 3 + jnp.arange(3, dtype=i.dtype)
    return i, lax.dynamic_slice_in_dim(x, i * 2, 2), jnp.where(i == 1, x, 0.0), at, at[::-1] < 4


@exchange("scan")
def _(d: Draw) -> Any:
    x = d.operand(3, 2, kinds=ANY)
    start, by = d.operand(2), d.operand(2)
    over = _over(d)

    def linear(c: Any, row: Any) -> Any:
        return c * 2 + row, c - row

    def mixed(c: Any, row: Any) -> Any:
        return jnp.tanh(c + row * by), lax.psum(c * row, over)

    y = d.operand(3, 2)
    reverse = d.pick([True, False])
    inner = lax.scan(lambda c, row: (lax.scan(mixed, c, y)[0] + row, c), start, y)
    sums = lax.scan(linear, jnp.zeros(2), x, reverse=reverse)
    return sums, lax.scan(mixed, start, y, reverse=reverse), inner


@exchange("independent steps")
def _(d: Draw) -> Any:
    x, y = d.operand(3, 2, 4, kinds=ANY), d.operand(3, 2, 4)
    start, by, over = d.operand(4), d.operand(4), _over(d)
    reverse = d.pick([True, False])
    square = d.pick([lambda row: row * row, lambda row: jnp.tanh(row), lambda row: row])

    def adding(c: Any, rows: Any) -> Any:
        total = square(rows[1]).sum(0) * by
        return (c[0] + total, c[1], c[2] + lax.psum(rows[1] @ by, over)), (rows[1] - by, total)

    def nested(c: Any, rows: Any) -> Any:
        inner = lax.scan(lambda a, row: (a + square(row), row * by), start, rows)
        return c + inner[0] * by, inner[1]

    def by_place(k: Any, c: Any) -> Any:
        return c + k * square(lax.dynamic_slice_in_dim(y.reshape(6, 4), k * 2, 2)).sum(0)

    zeros = (jnp.zeros(4), by, jnp.zeros(2))
    return (
        lax.scan(adding, zeros, (x, y), reverse=reverse),
        lax.scan(lambda c, row: (c + row.sum(0), None), start, x),
        lax.scan(nested, start, y),
        lax.fori_loop(0, 3, by_place, start),
        lax.map(lambda row: square(row) @ by, y),
        lax.scan(lambda c, row: (jnp.tanh(c) + row.sum(0), c), start, y[:1]),
    )


@exchange("while")
def _(d: Draw) -> Any:
    x, k = d.operand(3), d.operand(how=natural, kinds=("same", "spread"))
    over = _over(d)

    def step(c: Any) -> Any:
        i, x = c
        return i + 1, x * 0.5 + lax.pmean(x, over)

    return lax.while_loop(lambda c: c[0] < k % 4, step, (0, x)), lax.fori_loop(
        0, 2, lambda i, y: y * i + x, x
    )


@exchange("cond")
def _(d: Draw) -> Any:
    x = d.operand(3, kinds=ANY)
    k = d.operand(how=integers, kinds=("same", "spread", "hidden"))
    y = d.operand(3)
    two = lax.cond(k > 1, lambda y: y * 2, jnp.sin, y)
    linear = lax.cond(k > 1, lambda x: x * 2, lambda x: -x, x)
    return (
        two,
        linear,
        lax.switch(k, [jnp.sin, jnp.cos, lambda y: 3 * y], y),
        lax.cond(True, lambda x: x, lambda x: -x, x),
    )


__all__ = ["EXCHANGES", "KINDS"]
