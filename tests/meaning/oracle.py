"""The oracle: every value of a program is, on every device, what its meaning says.

A program is walked on a mesh; the meaning of each value is worked out in numbers (`evaluate`) and
compared with what the simulator says that every device holds. A value that is not owed has to be
the part that its cuts and hidden axes read off the whole; of an owed one, the sum (maximum,
minimum) over the devices has to be. So each rule is tested on each value, not only on results.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise._engine.lower import Pace, explain_divergence, observe
from shardwise._engine.lower.value import StackedValue as Stacked
from shardwise._engine.tracing import Tracing
from shardwise._meaning import Walk
from shardwise._meaning import term as T
from shardwise._meaning.devices import DeviceWalk, Many
from shardwise._meaning.reroll import rolled
from shardwise._meaning.value import Value, whole
from shardwise._meaning.walk import literal
from shardwise._mesh import AbstractMesh, Axis, axes_of
from shardwise._program import Body, Join, Lit, Op, Var, walk

from .evaluate import Evaluator
from .functions import structured

COMBINE: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min}


ALL = Pace(1 << 30)

QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Each program runs once, on a few numbers: compiling it is what takes time."""


@dataclasses.dataclass(frozen=True)
class Held:
    """A value as all devices hold it: a leading dimension for each axis it differs over."""

    array: np.ndarray
    axes: tuple[Axis, ...] = ()


class Run:
    """A program on a mesh, and what its devices hold."""

    def __init__(self, f: Callable[..., Any], mesh: AbstractMesh, args: tuple[Any, ...]):
        self.traced = Tracing(f, mesh)(args, {})
        self.body = self.traced.program.body
        self.vars = [
            var for op in self.body.ops for var in op.outs if var.dtype != jax.dtypes.float0
        ]

    @functools.cached_property
    def held(self) -> dict[Var, Held]:
        """Every value at the top level, as all devices hold it."""
        watch = self.traced.program.watch

        def run(*values: Any) -> Any:
            outs, trouble = observe(self.body, values, watch, ALL, self.vars)
            return [Stacked(_plain(out.array), out.dims) for out in outs], trouble

        compiled = jax.jit(run).lower(*self.traced.values).compile(QUICKLY)
        outs, trouble = jax.device_get(compiled(*self.traced.values))
        if trouble is not None and int(trouble.site):
            raise explain_divergence(watch.sites, int(trouble.site), np.asarray(trouble.branches))
        return dict(zip(self.vars, map(_held, outs), strict=True))


def _plain(x: Any) -> Any:
    is_key = jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def _held(value: Stacked) -> Held:
    axes = tuple(sorted(value.dims))
    array = np.moveaxis(np.asarray(value.array), [value.dims[a] for a in axes], range(len(axes)))
    return Held(array, axes)


@dataclasses.dataclass
class Tally:
    """How many values were compared, and how many had no numbers, by the reason."""

    compared: int = 0
    unknown: Counter = dataclasses.field(default_factory=Counter)
    results: int = 0
    """How many of the compared ones are results of the program."""

    def __iadd__(self, other: Tally) -> Tally:
        self.compared += other.compared
        self.unknown += other.unknown
        self.results += other.results
        return self


class Recorded(Walk):
    """A walk that keeps the meaning of every value."""

    def __init__(self, reference: Walk | None = None):
        super().__init__(reference)
        self.meanings: dict[Var, Value] = {}

    def remember(self, op: Op, ins: list[Value], outs: list[Value]) -> None:
        super().remember(op, ins, outs)
        self.meanings.update(zip(op.outs, outs, strict=True))


class RecordedApart(DeviceWalk):
    """The same for a walk that keeps the devices along an axis apart."""

    def __init__(self, axis: Axis | None, reference: Walk | None = None, entirely: bool = False):
        super().__init__(axis, reference, entirely)
        self.meanings: dict[Var, Value | Many] = {}

    def remember(self, op: Op, ins: list[Any], outs: list[Any]) -> None:
        super().remember(op, ins, outs)
        self.meanings.update(zip(op.outs, outs, strict=True))


class Meaning:
    """A program on a mesh, walked.

    With `apart`, the devices along that axis are kept apart, with `entirely` from the start; with
    `loops`, what was written out is read as loops.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        args: Sequence[Any],
        mesh: AbstractMesh,
        reference: Walk | None = None,
        apart: str | None = None,
        run: Run | None = None,
        loops: bool = False,
        entirely: bool = False,
    ):
        self.run = run or Run(f, mesh, tuple(args))
        traced, body = self.run.traced, self.run.body
        body = rolled(body) if loops else body
        self.ops = body.ops
        self.own = len(traced.values) - traced.argument_tree.num_leaves
        axis = axes_of(mesh)[apart] if apart is not None else None
        self.walk = (
            Recorded(reference) if axis is None else RecordedApart(axis, reference, entirely)
        )
        ins = [
            whole(literal(value))
            if i < self.own
            else whole(T.symbol("argument", i - self.own, shape=tuple(var.shape)))
            for i, (var, value) in enumerate(zip(body.ins, traced.values, strict=True))
        ]
        self.results: list[Any] = self.walk.run(body, ins)

    def evaluator(self) -> Evaluator:
        """The numbers of terms over this program's arguments and constants."""
        values = self.run.traced.values
        constants = {}
        for value in (*values[: self.own], *_literals(self.run.body)):
            made = literal(value)
            array = np.asarray(_numbers(value))
            if not jnp.issubdtype(getattr(value, "dtype", None), jax.dtypes.prng_key):
                constants[made[1]] = array
            else:
                constants[made[1].kids[0][1]] = array["key"].astype(float)
        return Evaluator([_numbers(value) for value in values[self.own :]], constants)


def _literals(body: Body) -> list[Any]:
    atoms = [atom for op in walk(body.ops) for atom in op.ins]
    atoms += [atom for one in _bodies(body) for atom in one.outs]
    return [atom.value for atom in atoms if isinstance(atom, Lit)]


def _bodies(body: Body) -> list[Body]:
    return [body, *(inner for op in walk(body.ops) for inner in op.bodies)]


def _numbers(value: Any) -> np.ndarray:
    if jnp.issubdtype(getattr(value, "dtype", None), jax.dtypes.prng_key):
        return structured(jax.random.key_data(value))
    array = np.asarray(value)
    if array.dtype.kind == "c":
        return array.astype(complex)
    return array.astype(float) if array.dtype != jax.dtypes.float0 else np.zeros(array.shape)


def assert_meaning(
    f: Callable[..., Any],
    *args: Any,
    mesh: AbstractMesh,
    reference: Walk | None = None,
    tolerance: float | None = None,
    apart: str | None = None,
) -> Tally:
    """Fail unless every device holds, of every value, what its meaning says."""
    return check_meaning(Meaning(f, args, mesh, reference, apart), tolerance)


def check_meaning(meaning: Meaning, tolerance: float | None = None) -> Tally:
    """The same for a program that is walked already."""
    body = meaning.run.body
    makers = {var: op for op in meaning.ops for var in op.outs}
    rows = [(var, makers[var]) for var in meaning.run.vars if var in makers]
    held = meaning.run.held
    evaluate = meaning.evaluator()
    results = {atom for atom in body.outs if isinstance(atom, Var)}
    limit = tolerance or 1e3 * max((_eps(var.dtype) for var, _ in rows), default=0.0)
    tally, wrong = Tally(), []
    for var, op in rows:
        value = meaning.walk.meanings[var]
        for each, mine in _by_device(meaning.walk, value, _returned(op, held[var])):
            numbers = evaluate(each.scaled)
            if numbers is None:
                tally.unknown[_reason(evaluate)] += 1
                continue
            tally.compared += 1
            tally.results += var in results
            off = difference(each, numbers, mine)
            if off > max(limit, 1e-9):
                name = getattr(op, "name", type(op).__name__)
                wrong.append(f"{name} at {op.where}: off by {off:.3g}: {each}")
    assert not wrong, "\n".join(wrong[:4])
    return tally


def _by_device(walked: Walk, value: Any, held: Held) -> list[tuple[Value, Held]]:
    if not isinstance(value, Many):
        return [(value, held)]
    axis = walked.axis if isinstance(walked, RecordedApart) else None
    assert axis is not None
    if axis not in held.axes:
        return [(one, held) for one in value.values]
    at = held.axes.index(axis)
    rest = tuple(one for one in held.axes if one != axis)
    parts = [Held(np.take(held.array, k, axis=at), rest) for k in range(axis.size)]
    return list(zip(value.values, parts, strict=True))


def _reason(evaluate: Evaluator) -> str:
    return ", ".join(sorted(evaluate.unknown))


def _eps(dtype: Any) -> float:
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0.0


def _returned(op: Op, held: Held) -> Held:
    """Outside of a `shard_map` there is one value; where devices differ it is the first one's."""
    inside = set(op.scope)
    if isinstance(op, Join):
        inside -= {*op.axes, *op.replicated}
    at = tuple(slice(None) if axis in inside else 0 for axis in held.axes)
    return Held(held.array[at], tuple(axis for axis in held.axes if axis in inside))


def difference(value: Value, numbers: np.ndarray, held: Held) -> float:
    """How far what the devices hold is from what they should, relative to its size."""
    axes = sorted({*value.axes, *value.debts, *held.axes})
    got = _spread(held.array, held.axes, axes)
    if numbers.dtype.kind == "V":
        numbers = numbers["key"]
        own = parts(value, numbers, extra=1)
    else:
        own = parts(value, numbers)
    got = got.astype(complex if "c" in (got.dtype.kind, own.dtype.kind) else float)
    sums = np.max(np.abs(got[np.isfinite(got)]), initial=0.0)
    for axis, kind in sorted(value.owed, reverse=True):
        got = COMBINE[kind](got, axis=axes.index(axis), keepdims=True)
    want = _spread(own, sorted(value.axes), axes)
    if want.shape[len(axes) :] != got.shape[len(axes) :]:
        return float("inf")
    got, want = np.broadcast_arrays(got, want)
    # Real arithmetic has no NaN; where floating point makes one, there is nothing to compare.
    same = (got == want) | np.isnan(got)
    scale = max(np.max(np.abs(want[np.isfinite(want)]), initial=1.0), sums)
    with np.errstate(all="ignore"):
        gap = np.where(same, 0.0, np.abs(got - want))
    gap = np.where(np.isnan(gap), np.inf, gap)
    return float(np.max(gap, initial=0.0) / scale)


def _spread(array: np.ndarray, own: Sequence[Axis], axes: Sequence[Axis]) -> np.ndarray:
    """With a leading dimension for each of `axes`, of size 1 where there is none."""
    lead = array.shape[: len(own)]
    order = sorted(range(len(own)), key=lambda i: axes.index(own[i]))
    array = array.transpose([*order, *range(len(own), array.ndim)])
    sizes = dict(zip(own, lead, strict=True))
    return array.reshape([sizes.get(axis, 1) for axis in axes] + list(array.shape[len(own) :]))


def parts(value: Value, numbers: np.ndarray, extra: int = 0) -> np.ndarray:
    """Each device's part of a whole: a leading dimension for each axis, in order, then the part."""
    shape: list[int] = [axis.size for axis in value.hidden]
    places = {axis: d for d, axis in enumerate(value.hidden)}
    local: list[int] = []
    for dim in value.dims:
        for size, axes in dim:
            for axis in axes:
                assert axis not in places, f"{axis} cuts twice in {value}"
                places[axis] = len(shape)
                shape.append(axis.size)
                size //= axis.size
            local.append(len(shape))
            shape.append(size)
    rest = numbers.shape[numbers.ndim - extra :] if extra else ()
    array = numbers.reshape([*shape, *rest])
    axes = sorted(places)
    tail = list(range(len(shape), len(shape) + extra))
    array = array.transpose([*(places[axis] for axis in axes), *local, *tail])
    return array.reshape([axis.size for axis in axes] + list(value.local) + list(rest))


__all__ = ["Meaning", "Tally", "assert_meaning", "check_meaning", "difference"]
