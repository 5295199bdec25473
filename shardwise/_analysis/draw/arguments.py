"""Draw values for arguments that are given as shapes.

Values are drawn, from a seed, for each `jax.ShapeDtypeStruct`, including those inside a pytree or
an abstract NNX object (`nnx.eval_shape`). Floats are normal, and smaller for larger matrices, so
that products keep their magnitude. Integers stay within their use as indices. Some are special
values of the program: masks such as the -100 of ignored labels, or values that the program compares
them with, such as predicted labels; all this is read off the program (`bounds`). Masked, matching
or true elements are drawn in unequal numbers for each device. Keys are keys.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ... import _jax
from ..._engine.nnx_objects import is_object
from ..._engine.tracing import Traced, Tracing
from ..._jax.types import unplaced
from ..._program import Split, Var
from ..lift import Run
from .bounds import bounds, compared, met, missing

SOME, WIDE = 10, 100_000
"""Upper bounds of integers whose use sets none: for most of them, and for some."""

RARELY = 0.25
"""The fraction of numbers that are special values of the program, or large."""

FEW = 4
"""The number of special values whose uneven distribution is ensured."""

TRIES = 100
"""How often to draw again until the parts of an array have different counts."""


Special = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]
"""A function that changes drawn values, given the first dimension that is split."""


@dataclasses.dataclass(frozen=True)
class How:
    """The options for drawing values."""

    marks: bool = True
    """Whether to include special values of the program."""
    wide: bool = True
    """Whether to include large integers."""
    signs: bool = True
    zero: bool = True
    """Whether integers may be 0."""
    unit: bool = False
    """Whether floats lie between 0 and 1."""
    special: Special | None = None
    """What puts special values into an array that is split."""


_WAYS = (How(), How(signs=False), How(signs=False, zero=False), How(unit=True, zero=False))
WAYS = (
    *_WAYS,
    *(dataclasses.replace(how, wide=False) for how in _WAYS),
    *(dataclasses.replace(how, wide=False, marks=False) for how in _WAYS),
)
"""The ways to draw values, tried in order until all results are finite."""


class DrawnArguments:
    """Values for the shapes among the arguments of a program, drawn from seeds."""

    def __init__(self, tracing: Tracing, args: tuple[Any, ...]):
        self.tracing, self.args = tracing, args
        self._leaves, self._rebuild = taken_apart(args)
        self._shapes = [i for i, leaf in enumerate(self._leaves) if _is_shape(leaf)]

    def __bool__(self) -> bool:
        """Return whether there are shapes."""
        return bool(self._shapes)

    @functools.cached_property
    def _uses(self) -> dict[int, Use]:
        values = self._filled({}, 0, How())
        return _used(self.tracing, self._rebuild(values), values)

    def inputs(self, run: Run) -> list[Var]:
        """Return the inputs of a program for which values are drawn."""
        given = {id(leaf) for leaf in self._leaves}
        rows = zip(run.arguments[::-1], run.traced.values[::-1], strict=False)
        return [var for var, value in rows if id(value) not in given]

    def special(self, seed: int, how: How) -> tuple[Any, ...]:
        """Return the arguments, drawn in one way, whatever the results are then."""
        return self._rebuild(self._filled(self._uses, seed, how))

    def run(self, seed: int, like: Run | None = None) -> tuple[Run, tuple[Any, ...]]:
        """Run with drawn values, and return the run and the arguments; `like` is reused.

        If a result is not finite, as for the root of a negative variance or a division by zero,
        the values are drawn again in another way; if no way helps, the first one is returned.
        """
        if not self:
            return Run(self.tracing, self.args, like), self.args
        trials: list[tuple[Run, tuple[Any, ...]]] = []

        def run(values: list[Any]) -> tuple[Run, tuple[Any, ...]]:
            args = self._rebuild(values)
            return Run(self.tracing, args, trials[0][0] if trials else like), args

        constrained = any(use != Use(split=use.split) for use in self._uses.values())
        is_whole = (jnp.issubdtype(self._leaves[i].dtype, jnp.integer) for i in self._shapes)
        for how in WAYS if constrained or any(is_whole) else _WAYS:
            values = self._filled(self._uses, seed, how)
            trials.append(run(values))
            if _is_finite(trials[-1][0]):
                nearer = self._met(trials[-1][0], values, seed)
                rerun = run(nearer) if nearer else trials[-1]
                return rerun if _is_finite(rerun[0]) else trials[-1]
        return trials[0]

    def _met(self, run: Run, values: list[Any], seed: int) -> list[Any]:
        """Return the values with some replaced by what the program compares them with, if anything.

        Random labels out of a thousand classes would never match a prediction.
        """
        partners = met(run.body)
        tested = [
            (index, partners[var])
            for var, index in _numbered(run.traced, values)
            if var in partners and index in self._shapes
            if var.shape and partners[var].shape[: len(var.shape)] == var.shape
        ]
        changed = list(values)
        for (index, _), out in zip(tested, run.observe([var for _, var in tested]), strict=True):
            array, use = np.asarray(values[index]), self._uses.get(index, Use())
            partner = out.first[(..., *(0,) * (out.first.ndim - array.ndim))].astype(array.dtype)
            changed[index] = jnp.asarray(_nearer(array, partner, use, seed + index))
        return changed if tested else []

    def _filled(self, uses: dict[int, Use], seed: int, how: How) -> list[Any]:
        rng, values = np.random.default_rng(seed), list(self._leaves)
        for i in self._shapes:
            values[i] = _draw(values[i], rng, uses.get(i, Use()), how)
        return values


@dataclasses.dataclass(frozen=True)
class Use:
    """How a program uses the numbers of one array."""

    limit: int | None = None
    """The exclusive upper bound for use as an index."""
    marks: tuple[float, ...] = ()
    """Special values that mark an element, where the array is no index."""
    sides: tuple[float, ...] = ()
    """Numbers at and around those it is compared with."""
    nan: bool = False
    """Whether the program tests it for NaN."""
    split: tuple[int, ...] = ()
    """The dimensions that are split over devices."""


def _used(tracing: Tracing, args: tuple[Any, ...], values: list[Any]) -> dict[int, Use]:
    """Return how the program uses the numbers of each leaf."""
    traced = tracing(args, {})
    body = traced.program.body
    limits, comparisons, can_be_nan = bounds(body), compared(body), missing(body)
    parts = {
        op.ins[0]: tuple(dim for dim, axes in enumerate(op.placement) if axes)
        for op in body.ops
        if isinstance(op, Split) and op.axes
    }
    uses = {
        index: Use(
            limits.get(var),
            *_marks_and_sides(var, comparisons.get(var, ())),
            var in can_be_nan,
            parts.get(var, ()),
        )
        for var, index in _numbered(traced, values)
    }
    return {index: use for index, use in uses.items() if use != Use()}


def _marks_and_sides(
    var: Var, comparisons: Iterable[tuple[str, float]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the integers that equalities single out, and numbers on both sides of the others."""
    marks, sides = set[float](), set[float]()
    for name, number in comparisons:
        if name not in ("eq", "ne"):
            sides |= {number, math.ceil(number) - 1, math.floor(number) + 1}
        elif jnp.issubdtype(var.dtype, jnp.integer):
            marks.add(number)
    return tuple(sorted(marks)), tuple(sorted(sides))


def _numbered(traced: Traced, values: list[Any]) -> list[tuple[Var, int]]:
    """Return the inputs of a program that are among these values, with their indices."""
    number = {id(value): index for index, value in enumerate(values)}
    rows = zip(traced.program.body.ins, traced.values, strict=True)
    return [(var, number[id(value)]) for var, value in rows if id(value) in number]


def _nearer(own: np.ndarray, there: np.ndarray, use: Use, seed: int) -> np.ndarray:
    """Set elements to those of `there`: none in the first half, most at the end; keep the marks.

    Unequal numbers of matches on the devices expose errors that equal numbers hide.
    """
    rng, marked = np.random.default_rng(seed), np.isin(own, use.marks)
    positions = np.meshgrid(*(np.linspace(0, 1, size) for size in own.shape), indexing="ij")
    odds = 2 * sum(positions) / own.ndim - 1
    return _unevenly(
        lambda: np.where(marked | (rng.random(own.shape) >= odds), own, there),
        lambda drawn: [drawn == there],
    )


def _is_shape(x: Any) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)


def _is_finite(run: Run) -> bool:
    return all(np.isfinite(value).all() for value in run.results())


def taken_apart(args: tuple[Any, ...]) -> tuple[list[Any], Callable[[list[Any]], tuple[Any, ...]]]:
    """Return all arrays among the arguments, and a function that replaces them."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        flat, tree = jax.tree.flatten(args)
        return flat, lambda values: jax.tree.unflatten(tree, values)
    mixed, outer = jax.tree.flatten(args, is_leaf=lambda x: is_object(nnx, x))
    objects = [x for x in mixed if is_object(nnx, x)]
    graph, state = nnx.split(tuple(objects))
    flat, tree = jax.tree.flatten((state, [x for x in mixed if not is_object(nnx, x)]))

    def rebuild(values: list[Any]) -> tuple[Any, ...]:
        # `merge` makes new objects, so that those of the caller are not changed.
        state, plain_leaves = jax.tree.unflatten(tree, values)
        rebuilt, other_leaves = iter(nnx.merge(graph, state)), iter(plain_leaves)
        return jax.tree.unflatten(
            outer, [next(rebuilt) if is_object(nnx, x) else next(other_leaves) for x in mixed]
        )

    return flat, rebuild


def without_zeros(args: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """Replace arrays of zeros among the arguments by numbers between 0 and 1."""
    rng = np.random.default_rng(seed)
    leaves, rebuild = taken_apart(args)
    return rebuild([_filled(x, rng) if is_zero(x) else x for x in leaves])


def is_zero(x: Any) -> bool:
    """Return whether something is a float, or an array of floats, and 0 everywhere."""
    if type(x) is float:
        return x == 0
    dtype = getattr(x, "dtype", bool)
    if _is_shape(x) or _jax.is_traced(x) or not jnp.issubdtype(dtype, jnp.floating):
        return False
    return bool(np.size(x)) and not np.asarray(unplaced(x)).any()


def _filled(x: Any, rng: np.random.Generator) -> Any:
    if type(x) is float:
        return float(rng.uniform(0.1, 0.9))
    return rng.uniform(0.1, 0.9, np.shape(x)).astype(x.dtype)


def _draw(shape: Any, rng: np.random.Generator, use: Use, how: How) -> Any:
    """Draw values for one array."""
    dims, dtype = shape.shape, shape.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        key = jax.random.key(int(rng.integers(1 << 31)), impl=_jax.key_impl(dtype))
        return jax.random.split(key, dims) if dims else key
    if jnp.issubdtype(dtype, jnp.bool_):
        drawn = _unevenly(lambda: rng.random(dims) < 0.75)
    elif jnp.issubdtype(dtype, jnp.integer):
        drawn = _whole(dims, dtype, rng, use, how)
    else:
        drawn = _numbers(dims, dtype, rng, use, how)
    if how.special is not None and use.split and drawn.size:
        drawn = how.special(np.array(drawn), use.split[0], rng)
    return jnp.asarray(drawn)  # float64 is narrowed as JAX does


def _numbers(dims: Any, dtype: Any, rng: np.random.Generator, use: Use, how: How) -> np.ndarray:
    size = 1 / math.sqrt(dims[-2]) if len(dims) > 1 and dims[-2] else 1.0
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    drawn = rng.normal(size=dims) * size
    if is_complex:
        drawn = drawn + 1j * rng.normal(size=dims) * size
    elif how.unit:
        drawn = rng.uniform(0.1, 0.9, dims)
    elif not how.signs:
        drawn = np.abs(drawn) + 0.1 * size
    if use.nan and how.marks and dims:
        odds = RARELY / max(math.prod(dims[1:]), 1)  # of rows, not of their elements
        is_nan = _unevenly(lambda: rng.random(dims) < odds)
        drawn = np.where(is_nan, np.nan, drawn)
    far_sides = [side for side in use.sides if abs(side) > size]
    if not (far_sides and how.marks and dims) or is_complex:
        return drawn.astype(dtype)

    def near() -> np.ndarray:
        near_sides = rng.choice(far_sides, dims) * (1 + 0.1 * rng.normal(size=dims))
        return np.where(rng.random(dims) < RARELY, near_sides, drawn)

    return _unevenly(near, lambda sample: [sample < side for side in far_sides[:FEW]]).astype(dtype)


def _whole(dims: Any, dtype: Any, rng: np.random.Generator, use: Use, how: How) -> np.ndarray:
    if use.limit is None and dtype == jnp.uint32 and dims and dims[-1] in (2, 4):
        return rng.integers(1 << 32, size=dims, dtype=np.uint32)  # the data of a key
    info = jnp.iinfo(dtype)
    limit = min(SOME if use.limit is None else max(use.limit, 1), int(info.max))
    least = 0 if how.zero or limit == 1 else 1

    def held(numbers: Sequence[float]) -> list[int]:
        integers = [int(n) for n in numbers if float(n).is_integer() and (n or how.zero)]
        return [n for n in integers if info.min <= n <= info.max]

    required = held((*use.marks, *use.sides))
    if not dims:
        # A scalar such as a step count may lie on either side of what it is compared with.
        above = [side for side in held(use.sides) if side >= limit][-1:]
        use_above = how.marks and above and rng.random() < 0.5
        return np.asarray(above[0] if use_above else rng.integers(least, limit), dtype)
    special = [n for n in required if not least <= n < limit] or required

    def numbers() -> np.ndarray:
        values = rng.integers(least, limit, size=dims)
        if how.wide and use.limit is None:
            large = np.exp(rng.uniform(0, math.log(min(WIDE, int(info.max))), dims))
            values = np.where(rng.random(dims) < RARELY, large.astype(np.int64), values)
        if how.marks and special:
            values = np.where(rng.random(dims) < RARELY, rng.choice(special, dims), values)
        return values.astype(dtype)

    def counted(drawn: np.ndarray) -> list[np.ndarray]:
        thresholds = sorted({*required})[:-1]
        return [np.isin(drawn, special), *(drawn <= n for n in thresholds[:FEW])]

    return _unevenly(numbers, counted if how.marks and special else lambda values: [values])


def _unevenly(
    draw: Callable[[], np.ndarray],
    counted: Callable[[np.ndarray], list[np.ndarray]] = lambda drawn: [drawn],
) -> np.ndarray:
    """Draw until the parts of an array have different counts along every dimension.

    A mask with equally many elements everywhere cannot expose a mean of means.
    """
    values = draw()
    for _ in range(TRIES):
        if all(map(_is_uneven, counted(values))):
            break
        values = draw()
    return values


def _is_uneven(counted: np.ndarray) -> bool:
    for dim, size in enumerate(counted.shape):
        counts = counted.sum(
            tuple(d for d in range(counted.ndim) if d != dim),
            dtype=np.float64,
        )
        for parts in (2, 3):
            if size and not size % parts and len({*counts.reshape(parts, -1).sum(1)}) == 1:
                return False
    return True
