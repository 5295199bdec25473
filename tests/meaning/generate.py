"""Random programs that run on a mesh of any size: most of them right, some with a mistake.

A program is written while it is traced, from a seed: the choices depend on how values are cut and
on what is owed of them, and on no size, so that the same program comes out on every mesh. Now and
then a rule is broken: a share is not added up, a whole is added up twice, parts are put together
wrongly.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

Cut = tuple[tuple[str, ...], ...]


@dataclasses.dataclass
class Part:
    """A device's part of a value: how it is cut, and the axes over which a sum is owed."""

    array: Any
    cut: Cut
    owed: frozenset[str] = frozenset()

    @property
    def axes(self) -> set[str]:
        return {axis for axes in self.cut for axis in axes}


class Scribe:
    """Writes the body of one program."""

    def __init__(self, seed: Any, names: tuple[str, ...], mistakes: float):
        self.random = random.Random(repr(seed))
        self.names, self.mistakes = names, mistakes
        self.live: list[Part] = []
        self.outs: list[tuple[Any, P]] = []

    def slip(self) -> bool:
        """Whether a rule is broken here."""
        return self.random.random() < self.mistakes

    def pick(self, options: Any) -> Any:
        return self.random.choice(list(options))

    def some(self, *, owed: bool = False, rank: int = 0) -> Part | None:
        fit = [v for v in self.live if len(v.cut) >= rank and (owed or not v.owed or self.slip())]
        return self.pick(fit[-6:]) if fit else None

    def write(self, count: int) -> None:
        """Some statements."""
        for _ in range(count):
            statement = self.pick(STATEMENTS)
            made = statement(self)
            if made is not None and made.array.size <= 4096:
                self.live.append(made)

    def paid(self, v: Part) -> Part:
        """With nothing owed."""
        if not v.owed or self.slip():
            return dataclasses.replace(v, owed=frozenset())
        reduce = lax.pmean if self.slip() else lax.psum
        return Part(reduce(v.array, tuple(sorted(v.owed))), v.cut)

    def results(self, count: int) -> list[tuple[Any, P]]:
        """The last values, with the specs that put their parts together."""
        found = []
        for v in self.live[-count:]:
            v = self.paid(v)
            entries = [axes if len(axes) > 1 else axes[0] if axes else None for axes in v.cut]
            found.append((v.array, P(*entries)))
        return found


def unary(s: Scribe) -> Part | None:
    v = s.some()
    f = s.pick([jnp.tanh, jnp.sin, lambda x: x * x, jax.nn.relu, lambda x: jnp.exp(-x * x), abs])
    return None if v is None else Part(f(v.array), v.cut, v.owed)


def scaled(s: Scribe) -> Part | None:
    v = s.some(owed=True)
    f = s.pick([lambda x: -x, lambda x: x * 0.5, lambda x: x / 3, lambda x: 2 * x])
    return None if v is None else Part(f(v.array), v.cut, v.owed)


def binary(s: Scribe) -> Part | None:
    v = s.some(owed=True)
    if v is None:
        return None
    alike = [
        u
        for u in s.live
        if u.array.shape == v.array.shape and ((u.cut == v.cut and u.owed == v.owed) or s.slip())
    ]
    if not alike:
        return None
    u = s.pick(alike)
    product = not v.owed or s.slip()
    f = s.pick([jnp.add, jnp.subtract, *([jnp.multiply, jnp.maximum] if product else [])])
    return Part(f(v.array, u.array), v.cut, v.owed)


def shared(s: Scribe) -> Part | None:
    """A share of a sum times something that is the same on its axes."""
    v = s.some(owed=True)
    whole = [u for u in s.live if not u.cut and not u.owed]
    if v is None or not whole:
        return None
    return Part(v.array * s.pick(whole).array, v.cut, v.owed)


def total(s: Scribe) -> Part | None:
    v = s.some(owed=True, rank=1)
    if v is None:
        return None
    d = s.random.randrange(len(v.cut))
    rest = (*v.cut[:d], *v.cut[d + 1 :])
    return Part(v.array.sum(d), rest, v.owed | set(v.cut[d]))


def mean(s: Scribe) -> Part | None:
    v = s.some(rank=1)
    if v is None or v.owed:
        return None
    d = s.random.randrange(len(v.cut))
    rest = (*v.cut[:d], *v.cut[d + 1 :])
    own = v.array.mean(d)
    return Part(lax.pmean(own, v.cut[d]) if v.cut[d] and not s.slip() else own, rest)


def largest(s: Scribe) -> Part | None:
    v = s.some(rank=1)
    if v is None or v.owed:
        return None
    d = s.random.randrange(len(v.cut))
    rest = (*v.cut[:d], *v.cut[d + 1 :])
    f, g = s.pick([(jnp.max, lax.pmax), (jnp.min, lax.pmin)])
    own = f(v.array, axis=d)
    return Part(g(own, v.cut[d]) if v.cut[d] and not s.slip() else own, rest)


def pay(s: Scribe) -> Part | None:
    owing = [v for v in s.live if v.owed] or (s.live if s.slip() else [])
    if not owing:
        return None
    v = s.pick(owing)
    axes = sorted(v.owed) or [s.pick(s.names)]
    d = next((d for d, axes_d in enumerate(v.cut) if not axes_d), None)
    if len(axes) == 1 and d is not None and v.array.shape[d] % 8 == 0 and s.random.random() < 0.4:
        part = lax.psum_scatter(v.array, axes[0], scatter_dimension=d, tiled=True)
        return Part(part, (*v.cut[:d], tuple(axes), *v.cut[d + 1 :]))
    return Part(lax.psum(v.array, tuple(axes)), v.cut)


def gathered(s: Scribe) -> Part | None:
    v = s.some(rank=1)
    cut = [d for d, axes in enumerate(v.cut) if axes] if v else []
    if v is None or not cut or v.owed:
        return None
    d = s.pick(cut)
    at = s.random.randrange(len(v.cut)) if s.slip() else d
    rest = (*v.cut[:d], v.cut[d][:-1], *v.cut[d + 1 :])
    return Part(lax.all_gather(v.array, v.cut[d][-1], axis=at, tiled=True), rest)


def moved(s: Scribe) -> Part | None:
    """A cut moves to another dimension."""
    v = s.some(rank=2)
    if v is None or v.owed:
        return None
    cut = [d for d, axes in enumerate(v.cut) if len(axes) == 1]
    free = [d for d, axes in enumerate(v.cut) if not axes and v.array.shape[d] % 8 == 0]
    if not cut or not free:
        return None
    d, e = s.pick(cut), s.pick(free)
    out = lax.all_to_all(v.array, v.cut[d][0], e, d, tiled=True)
    new = [*v.cut]
    new[d], new[e] = new[e], new[d]
    return Part(out, tuple(new))


def product(s: Scribe) -> Part | None:
    """A matrix product along a dimension that both have cut alike."""
    v = s.some(rank=1)
    u = s.some(rank=1)
    if v is None or u is None or (v.owed | u.owed):
        return None
    pairs = [
        (i, j)
        for i in range(len(v.cut))
        for j in range(len(u.cut))
        if v.array.shape[i] == u.array.shape[j] and (v.cut[i] == u.cut[j] or s.slip())
    ]
    if not pairs or len(v.cut) + len(u.cut) > 4:
        return None
    i, j = s.pick(pairs)
    rest = (
        *(c for d, c in enumerate(v.cut) if d != i),
        *(c for d, c in enumerate(u.cut) if d != j),
    )
    named = [axis for axes in rest for axis in axes]
    if (len(set(named)) < len(named) or set(named) & set(v.cut[i])) and not s.slip():
        return None
    if len(set(named)) < len(named):
        return None
    out = jnp.tensordot(v.array, u.array, ((i,), (j,))) / 8
    return Part(out, rest, frozenset(v.cut[i]) - set(named))


def turned(s: Scribe) -> Part | None:
    v = s.some(owed=True, rank=2)
    if v is None:
        return None
    order = s.random.sample(range(len(v.cut)), len(v.cut))
    return Part(jnp.transpose(v.array, order), tuple(v.cut[d] for d in order), v.owed)


def spread(s: Scribe) -> Part | None:
    """Something added along a dimension: a row, or the numbers of the rows."""
    v = s.some(rank=1)
    if v is None or v.owed:
        return None
    d = s.random.randrange(len(v.cut))
    size = v.array.shape[d]
    if s.pick([True, False]):
        rows = [
            u for u in s.live if u.cut == (v.cut[d],) and u.array.shape == (size,) and not u.owed
        ]
        row = s.pick(rows).array if rows else None
    else:
        start = 0
        for axis in v.cut[d] if not s.slip() else ():
            start = start * lax.axis_size(axis) + lax.axis_index(axis)
        row = (start * size + jnp.arange(size)).astype(v.array.dtype) / 8
    if row is None:
        return None
    shape = [1] * len(v.cut)
    shape[d] = size
    f = s.pick([jnp.add, jnp.multiply])
    return Part(f(v.array, row.reshape(shape)), v.cut)


def softmax(s: Scribe) -> Part | None:
    v = s.some(rank=1)
    if v is None or v.owed:
        return None
    d = s.random.randrange(len(v.cut))
    if not v.cut[d]:
        return Part(jax.nn.softmax(v.array, axis=d), v.cut)
    top = lax.pmax(v.array.max(d, keepdims=True), v.cut[d])
    raised = jnp.exp(v.array - top)
    below = raised.sum(d, keepdims=True)
    return Part(raised / (below if s.slip() else lax.psum(below, v.cut[d])), v.cut)


def merged(s: Scribe) -> Part | None:
    """Two dimensions become one where the second is not cut."""
    v = s.some(owed=True, rank=2)
    fit = [d for d in range(len(v.cut) - 1) if not v.cut[d + 1]] if v else []
    if v is None or not fit:
        return None
    d = s.pick(fit)
    shape = (*v.array.shape[:d], -1, *v.array.shape[d + 2 :])
    return Part(v.array.reshape(shape), (*v.cut[: d + 1], *v.cut[d + 2 :]), v.owed)


def joined(s: Scribe) -> Part | None:
    v = s.some(owed=True, rank=1)
    fit = [d for d, axes in enumerate(v.cut) if not axes] if v else []
    if v is None or not fit:
        return None
    d = s.pick(fit)
    return Part(jnp.concatenate([v.array, -v.array], d), v.cut, v.owed)


def looped(s: Scribe) -> Part | None:
    v = s.some(rank=1)
    if v is None or v.owed:
        return None
    d = s.random.randrange(len(v.cut))
    f = s.pick(
        [
            lambda c, x: (c * 0.5 + x, c),
            lambda c, x: (jnp.tanh(c + x), x * c),
            lambda c, x: (c + x * x, x),
        ]
    )
    rows = jnp.moveaxis(v.array, d, 0)
    if v.cut[d] and not s.slip():
        return None
    last, all_of_them = lax.scan(f, jnp.zeros_like(rows[0]), rows)
    rest = (*v.cut[:d], *v.cut[d + 1 :])
    if s.pick([True, False]):
        return Part(last, rest)
    return Part(all_of_them, ((), *rest))


def repeated(s: Scribe) -> Part | None:
    """A loop that carries a value, and a sum over devices in it."""
    v = s.some()
    if v is None or v.owed:
        return None
    axis = s.pick([*v.axes, *s.names])

    def step(i: Any, x: Any) -> Any:
        scale = lax.pmean(jnp.mean(x), tuple(v.axes)) if v.axes else jnp.mean(x)
        if s_slip:
            scale = lax.psum(scale, axis)
        return x * 0.5 + jnp.sin(scale)

    s_slip = s.slip()
    return Part(lax.fori_loop(0, 3, step, v.array), v.cut)


def chosen(s: Scribe) -> Part | None:
    v, u = s.some(), s.some()
    if v is None or u is None or v.owed or u.owed:
        return None
    if u.cut and not (u.cut == v.cut and u.array.shape == v.array.shape):
        return None
    return Part(jnp.where(u.array > 0, v.array, 0.5), v.cut)


def held(s: Scribe) -> Part | None:
    """A branch that all devices take."""
    v = s.some()
    scalars = [u for u in s.live if not u.cut and not u.owed]
    if v is None or v.owed or not scalars:
        return None
    at = s.pick(scalars).array > 0
    return Part(lax.cond(at, jnp.sin, lambda x: x * 2, v.array), v.cut)


def passed(s: Scribe) -> Part | None:
    """Everyone passes his part round the ring, and all of it is added up."""
    v = s.some(rank=1)
    if v is None or v.owed or not v.axes:
        return None
    axis = s.pick(sorted(v.axes))
    n = lax.axis_size(axis)
    out, x = v.array, v.array
    for _ in range(n - 1 - (s.slip() and n > 1)):
        x = lax.ppermute(x, axis, [(i, (i + 1) % n) for i in range(n)])
        out = out + x
    d = next(d for d, axes in enumerate(v.cut) if axis in axes)
    if len(v.cut[d]) > 1:
        return None
    return Part(out.sum(d), (*v.cut[:d], *v.cut[d + 1 :]))


def drawn(s: Scribe) -> Part | None:
    v = s.some(rank=1)
    if v is None or v.owed:
        return None
    key = jax.random.key(s.random.randrange(9))
    if v.axes and not s.slip():
        return None
    return Part(v.array + jax.random.uniform(key, v.array.shape, v.array.dtype), v.cut)


def sloped(s: Scribe) -> Part | None:
    """A derivative in the body, by a value that everyone has, added up over what was cut."""
    v = s.some(rank=1)
    whole = [u for u in s.live if not u.axes and not u.owed and u.array.ndim <= 1]
    if v is None or v.owed or not whole:
        return None
    w = s.pick(whole)
    axes = frozenset(v.axes)

    def loss(w: Any) -> Any:
        return jnp.sum(jnp.tanh(v.array * w.mean())) / 8

    return Part(jax.grad(loss)(w.array), w.cut, axes)


STATEMENTS: list[Callable[[Scribe], Part | None]] = [
    *(unary, unary, scaled, binary, binary, shared, total, total, mean, largest, pay, pay),
    *(gathered, moved, product, product, product, turned, spread, softmax, merged, joined),
    *(looped, repeated, chosen, held, passed, drawn, sloped),
]

SHAPES = ((8,), (16,), (8, 8), (8, 3), (16, 8), (8, 8, 2), ())


@dataclasses.dataclass
class Made:
    """A program: a function `f(*args, mesh)`, its arguments, and the mesh to try it on."""

    f: Callable[..., Any]
    args: list[np.ndarray]
    mesh: dict[str, int]


def make(seed: Any, mistakes: float) -> Made:
    """The program of a seed."""
    rng = random.Random(repr(seed))
    sizes = rng.choice(
        [{"a": 2}, {"a": 4}, {"a": 8}, {"a": 2, "b": 2}, {"a": 2, "b": 4}, {"a": 4, "b": 2}]
    )
    names = tuple(sizes)
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    args, specs = [], []
    for _ in range(rng.randint(2, 4)):
        shape = rng.choice(SHAPES)
        cut: list[tuple[str, ...]] = [()] * len(shape)
        for axis in names:
            fit = [d for d, size in enumerate(shape) if size % 8 == 0]
            if fit and rng.random() < 0.7:
                cut[rng.choice(fit)] += (axis,)
        args.append(numbers.normal(size=shape).astype(np.float32))
        specs.append(tuple(cut))
    slips = mistakes if rng.random() < 0.5 else 0.0
    length = rng.randint(3, 9)

    def entry(axes: tuple[str, ...]) -> Any:
        return axes if len(axes) > 1 else axes[0] if axes else None

    in_specs = tuple(P(*map(entry, cut)) for cut in specs)

    def f(*args: Any, mesh: Any) -> Any:
        found: list[P] = []

        def body(*parts: Any) -> Any:
            scribe = Scribe(seed, names, slips)
            scribe.live = [Part(x, cut) for x, cut in zip(parts, specs, strict=True)]
            scribe.write(length)
            rows = scribe.results(3)
            found[:] = [spec for _, spec in rows]
            return [array for array, _ in rows]

        def whole(*parts: Any) -> Any:
            return body(*parts)

        # The specs of the results are known once the body has been written.
        options = {"mesh": mesh, "in_specs": in_specs, "check_vma": False}
        jax.eval_shape(jax.shard_map(whole, out_specs=P(), **options), *args)
        return jax.shard_map(body, out_specs=list(found), **options)(*args)

    return Made(f, args, sizes)
