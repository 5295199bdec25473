"""Operands of random cuts: what a body may be given, of any local shape that is asked for.

A program is drawn twice from the same seed. The first time nothing is there yet and every operand
notes the argument that it needs; the second time the arguments are the parts of a `shard_map`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

MESHES = ({"a": 2}, {"a": 4}, {"a": 3}, {"a": 2, "b": 2}, {"a": 4, "b": 2}, {"b": 3, "a": 2})

SHAPES = ((), (3,), (4,), (1,), (2, 3), (4, 2), (1, 4), (2, 1, 2), (2, 2, 3))

KINDS = ("cut", "cut", "cut", "reshaped", "turned", "hidden", "spread", "zeros", "same", "row")
"""What a value may be that no sum is owed of."""

OWED = ("owed", "owed", "owed zero")

Spec = tuple[tuple[str, ...], ...]


class Draw:
    """A source of choices and of operands."""

    def __init__(self, seed: Any, mesh: dict[str, int], parts: Sequence[Any] | None = None):
        self.random = random.Random(repr(seed))
        self.mesh = mesh
        self.parts = parts
        self.wanted: list[tuple[np.ndarray, Any]] = []

    def pick(self, options: Sequence[Any]) -> Any:
        return self.random.choice(list(options))

    def shape(self, low: int = 0, high: int = 3) -> tuple[int, ...]:
        return self.pick([s for s in SHAPES if low <= len(s) <= high])

    def axes(self, options: Sequence[str]) -> list[str]:
        """Some of the axes, in any order."""
        found = [axis for axis in options if self.random.random() < 0.6]
        self.random.shuffle(found)
        return found

    def argument(self, local: Sequence[int], spec: Spec, how: Callable[..., Any]) -> Any:
        """A part of an argument, of a local shape, with the axes each dimension is split over."""
        sizes = [
            size * int(np.prod([self.mesh[axis] for axis in axes], dtype=int))
            for size, axes in zip(local, spec, strict=True)
        ]
        number = len(self.wanted)
        rng = np.random.default_rng(number)
        entries = [axes if len(axes) > 1 else axes[0] if axes else None for axes in spec]
        self.wanted.append((how(rng, sizes), P(*entries)))
        if self.parts is None:
            return jnp.zeros(tuple(local), self.wanted[-1][0].dtype)
        return self.parts[number]

    def cut(self, local: Sequence[int], how: Callable[..., Any], free: Sequence[str]) -> Any:
        """Each axis along some dimension, or along none."""
        spec: list[tuple[str, ...]] = [()] * len(local)
        if local:
            for axis in self.axes(free):
                d = self.random.randrange(len(local))
                spec[d] = (*spec[d], axis)
        return self.argument(local, tuple(spec), how)

    def operand(
        self, *local: int, how: Callable[..., Any] | None = None, kinds: Sequence[str] = KINDS
    ) -> Any:
        """A value of this local shape."""
        how = how or normal
        kind = self.pick(kinds)
        names = list(self.mesh)
        match kind:
            case "cut":
                return self.cut(local, how, names)
            case "same":
                return self.argument(local, ((),) * len(local), how)
            case "reshaped":
                return self.reshaped(local, how, names)
            case "turned":
                order = self.random.sample(range(len(local)), len(local))
                part = self.cut([local[d] for d in order], how, names)
                return jnp.transpose(part, [order.index(d) for d in range(len(local))])
            case "hidden":
                part = self.cut(local, how, names)
                index = lax.axis_index(self.pick(names))
                return part + index.astype(part.dtype)
            case "spread":
                return jnp.broadcast_to(self.argument((), (), how), local)
            case "row":
                if not local:
                    return self.argument((), (), how)
                return jnp.broadcast_to(self.cut(local[-1:], how, names), local)
            case "zeros":
                return jnp.zeros(local, how(np.random.default_rng(0), (1,)).dtype)
            case "owed" | "owed zero" | "owed max":
                return self.owed(kind, local, how, names)
        raise ValueError(kind)

    def reshaped(self, local: Sequence[int], how: Callable[..., Any], names: list[str]) -> Any:
        """Cut otherwise before a reshape: dimensions fall apart into segments, or run together."""
        pieces = []
        for size in local:
            first = self.pick([n for n in range(1, size + 1) if size % n == 0])
            pieces += self.pick([[size], [first, size // first], [1, size]])
        if self.random.random() < 0.3:
            pieces = [int(np.prod(local, dtype=int))]
        return jnp.reshape(self.cut(pieces, how, names), local)

    def owed(
        self, kind: str, local: Sequence[int], how: Callable[..., Any], names: list[str]
    ) -> Any:
        """A share of a sum (or of a maximum) over some axes; others may cut it."""
        over = self.axes(names) or [self.pick(names)]
        spec: list[tuple[str, ...]] = [tuple(over)] + [()] * len(local)
        if local:
            for axis in self.axes([name for name in names if name not in over]):
                spec[1 + self.random.randrange(len(local))] += (axis,)
        part = self.argument((2, *local), tuple(spec), how)
        if kind == "owed max":
            return part.max(0)
        total = part.sum(0)
        if kind == "owed zero":
            return total - lax.pmean(total, tuple(over))
        return total


def normal(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return rng.normal(size=shape)


def positive(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return rng.uniform(1.1, 2.0, size=shape)


def fraction(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return rng.uniform(0.1, 0.9, size=shape)


def integers(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return rng.integers(-3, 7, size=shape)


def natural(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return rng.integers(0, 7, size=shape)


def bits(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return rng.integers(0, 2**20, size=shape).astype(np.uint32)


def truth(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return rng.integers(0, 2, size=shape).astype(bool)


def program(bodies: Sequence[Callable[[Draw], Any]], seed: Any, sizes: dict[str, int]) -> Any:
    """A function `f(*args, mesh)` that runs the bodies in one `shard_map`, and its arguments."""

    def run(parts: Sequence[Any] | None) -> tuple[Draw, Any]:
        draw = Draw(seed, sizes, parts)
        return draw, [jax.tree.leaves(body(draw)) for body in bodies]

    noted: list[Draw] = []

    def first() -> Any:
        draw, out = run(None)
        noted.append(draw)
        return out

    from shardwise import mesh as make_mesh

    abstract = make_mesh(sizes)
    options = {"out_specs": P(), "check_vma": False}
    jax.eval_shape(jax.shard_map(first, mesh=abstract, in_specs=(), **options))
    args = [array for array, _ in noted[0].wanted]
    specs = tuple(spec for _, spec in noted[0].wanted)

    def f(*args: Any, mesh: Any) -> Any:
        def body(*parts: Any) -> Any:
            return run(parts)[1]

        return jax.shard_map(body, mesh=mesh, in_specs=specs, **options)(*args)

    return f, args
