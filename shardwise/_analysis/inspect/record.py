"""Run a program for all devices and keep every value.

One compiled call returns all values of a list of operations, each stacked for all devices. The body
of a loop or a branch is then run again with its recorded inputs: a loop iteration by iteration, a
branch for the devices that take it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._engine.call import SimulatedProgram
from ..._engine.lower import Pace, StackedValue, explain_divergence
from ..._engine.lower.context import Context, Env, read
from ..._engine.lower.run import run
from ..._meaning import Kept, holding
from ..._mesh import Axis
from ..._program import (
    AxisIndex,
    Body,
    Collective,
    Cond,
    Join,
    Leaf,
    Op,
    Scan,
    Split,
    Var,
    Where,
    While,
    anywhere,
    walk,
)
from .data import WHOLE, Part, Step
from .derivatives import with_results
from .leaves import key_of, leaf_names
from .names import names
from .seen import IterationContext, StackedResult, Uses

ALL = Pace(1 << 30)
"""All devices at once: inspected programs are small."""

FIRST, MOST = 4, 512
"""The number of iterations to keep at the start of a loop, in addition to the last one; and the
maximum length of a loop that is run to its end."""


class StepRecorder:
    """Runs a program and converts what it sees into steps."""

    def __init__(
        self, program: SimulatedProgram, meanings: Kept | None = None, results: Sequence[str] = ()
    ):
        self.program = program
        self._leaves = leaf_names(program.body, results)
        self.meanings = meanings
        self.notes: list[str] = []
        self.deadlock = ""
        self._seen: list[StackedResult] = []
        self._runs: dict[int, Callable[..., Any]] = {}

    def record(self, values: Sequence[Any]) -> list[Step]:
        """Return all steps, in program order."""
        body = self.program.body
        ins = [StackedValue(_jax_array(value)) for value in values]
        self._list(body, ins, IterationContext())
        return self._steps()

    # --- running

    def _list(
        self,
        body: Body,
        ins: Sequence[StackedValue],
        around: IterationContext,
    ) -> list[StackedValue]:
        """Run a list of operations and record all values, also of nested bodies."""
        results, trouble = self._run(body)(list(ins))
        end, watch = len(body.ops), self.program.watch
        if trouble is not None and int(trouble.site) and not self.deadlock:
            site = watch.sites[int(trouble.site) - 1]
            error = explain_divergence(watch.sites, int(trouble.site), np.asarray(trouble.branches))
            self.deadlock = str(error)
            blocked = (i for i, op in enumerate(body.ops) if op is site or site in walk([op]))
            end = next(blocked, end)
        env: Env = dict(zip(body.ins, ins, strict=True))
        for op, outs in zip(body.ops[:end], results, strict=False):
            env.update(zip(op.outs, outs, strict=True))
            if op.bodies:
                self._nested(op, [read(env, atom) for atom in op.ins], around)
            self._seen += [StackedResult(op, i, value, around) for i, value in enumerate(outs)]
        return [] if end < len(body.ops) else [read(env, atom) for atom in body.outs]

    def _run(self, body: Body) -> Callable[..., Any]:
        if id(body) in self._runs:
            return self._runs[id(body)]

        watch = self.program.watch

        def all_values(ins: list[StackedValue]) -> Any:
            cx = Context(run, watch, ALL)
            env: Env = dict(zip(body.ins, ins, strict=True))
            axes = dict.fromkeys(a for op in body.ops for a in sorted(op.needs | op.meets))
            keep = [var for op in body.ops for var in op.outs]
            run(body.ops, list(axes), env, keep, cx)
            values = [[_strong(env[var], var) for var in op.outs] for op in body.ops]
            return values, cx.divergence() if watch.sites else None

        self._runs[id(body)] = jax.jit(all_values)
        return self._runs[id(body)]

    def _nested(self, op: Op, ins: list[StackedValue], around: IterationContext) -> None:
        match op:
            case Scan():
                self._scan(op, ins, around)
            case While():
                self._while(op, ins, around)
            case Cond():
                self._cond(op, ins, around)

    def _scan(self, op: Scan, ins: list[StackedValue], around: IterationContext) -> None:
        second = op.consts + op.carry
        consts, carry, xs = ins[: op.consts], ins[op.consts : second], ins[second:]
        iterations = range(op.length)[:: -1 if op.reverse else 1]
        for count, iteration in enumerate(iterations):
            if self._too_long(op, count, op.length):
                return
            slices = [_row(value, iteration) for value in xs]
            outs = self._iteration(op.body, [*consts, *carry, *slices], around, count, op.length)
            if not outs:
                return
            carry = outs[: op.carry]

    def _while(self, op: While, ins: list[StackedValue], around: IterationContext) -> None:
        first, second = op.cond_consts, op.cond_consts + op.body_consts
        cond_consts, body_consts, carry = ins[:first], ins[first:second], ins[second:]
        count = 0
        while True:
            mark = len(self._seen)
            (go,) = self._list(op.cond, [*cond_consts, *carry], around)
            del self._seen[mark:]
            if not np.asarray(go.array).any() or self._too_long(op, count, None):
                return
            if go.dims and not np.asarray(go.array).all():
                self.notes.append(
                    f"{op.where}: devices leave this loop at different iterations; the "
                    "iterations after the first one leaves are not shown."
                )
                return
            carry = self._iteration(op.body, [*body_consts, *carry], around, count, None)
            if not carry:
                return
            count += 1

    def _iteration(
        self,
        body: Body,
        ins: list[StackedValue],
        around: IterationContext,
        count: int,
        length: int | None,
    ) -> list[StackedValue]:
        """Run one iteration of a loop, and keep it if it is among the first or the last."""
        mark = len(self._seen)
        inner = dataclasses.replace(around, iteration=(*around.iteration, count))
        outs = self._list(body, ins, inner)
        if count >= FIRST and count + 1 != length and not self.deadlock:
            del self._seen[mark:]
        return outs

    def _too_long(self, op: Op, count: int, length: int | None) -> bool:
        if count == FIRST and length != FIRST + 1:
            last = " and the last" if length is not None and length <= MOST else ""
            note = f"only the first {FIRST}{last} iterations of this loop are shown."
            self.notes.append(f"{op.where}: {note}")
        return count >= (MOST if length is None or length <= MOST else FIRST)

    def _cond(self, op: Cond, ins: list[StackedValue], around: IterationContext) -> None:
        index, *operands = ins
        choices = np.clip(np.asarray(index.array).astype(int), 0, len(op.branches) - 1)
        along = sorted(index.dims, key=lambda axis: index.dims[axis])
        for choice in np.unique(choices):
            only = around.only
            if along and (choices != choice).any():
                positions = np.argwhere(choices == choice)
                only = tuple(
                    {axis.name: int(i) for axis, i in zip(along, row, strict=True)}
                    for row in positions
                )
            self._list(op.branches[choice], operands, dataclasses.replace(around, only=only))

    # --- steps

    def _steps(self) -> list[Step]:
        body = self.program.body
        uses = Uses(body)
        values = with_results(self._seen, body, uses)
        labels = names([item for item in values if item.call is None], uses)
        arrays = jax.device_get([_plain_array(item.value.array) for item in values])
        remaining = iter(labels)
        return [
            self._step(number, item, value, next(remaining) if item.call is None else "", uses)
            for number, (item, value) in enumerate(zip(values, arrays, strict=True))
        ]

    def _step(self, number: int, result: StackedResult, value: Any, name: str, uses: Uses) -> Step:
        op, var, derivative = result.op, result.var, result.call
        axes = tuple(sorted(result.value.dims, key=lambda axis: _order(op.scope, axis)))
        if derivative is not None:
            name = result.name
            role = "gradient" if uses.backward(op) else "value"
            label, kind = f"{derivative.function} ({role})", "derivative"
        else:
            name = op.name if isinstance(op, Split) else name
            label, kind = operation(op), _kind(op)
        return Step(
            number=number,
            operation=label,
            kind=kind,
            where=_where(op) if derivative is None else derivative.where,
            name=name,
            shape=tuple(var.shape),
            dtype=var.kind,
            over=tuple(axis.name for axis in axes),
            parts=_parts(value, result.value.dims, axes, var),
            iteration=result.around.iteration,
            direction=uses.passes.of(op),
            saved=var in uses.residuals,
            only=result.around.only,
            meaning=self._meaning(op, result.out),
            leaf=self._leaf(result, label, uses.passes.of(op)),
        )

    def _leaf(self, result: StackedResult, operation: str, direction: str) -> str:
        """Return the leaf that a result, a gradient or a value of the update becomes."""
        gradient = result.call is not None and operation.endswith("(gradient)")
        leaf = self._leaves.get(result.var, "")
        if isinstance(result.op, Join):
            return leaf
        return key_of(leaf) if gradient or direction == "update" else ""

    def _meaning(self, op: Op, out: int) -> str | None:
        """Describe how a value inside a `shard_map` relates to the global array; None outside."""
        in_shard_map = isinstance(op, Split) or (op.scope and not isinstance(op, Join))
        meaning = self.meanings.of(op) if self.meanings is not None and in_shard_map else None
        return None if meaning is None else holding(meaning.outs[out], meaning.names)


def _where(op: Op) -> Where:
    """Return the line of an operation; for the operations of a library, the library's own."""
    return op.where if op.where.file else anywhere(op.source)


def operation(op: Op) -> str:
    """Return a description of an operation."""
    match op:
        case Collective():
            axes = [axis.name for axis in op.axes]
            return f"{op.name} over {', '.join(axes)}"
        case Leaf():
            return op.name
        case AxisIndex():
            return f"axis_index of {op.axis.name}"
        case Split():
            return "in_specs" if any(op.placement) else "in_specs (whole)"
        case Join():
            return "out_specs"
        case Scan():
            return f"scan of {op.length} iterations"
        case While():
            return "while_loop"
        case Cond():
            return "cond"
    return type(op).__name__.lower()


def _kind(op: Op) -> str:
    match op:
        case Split():
            return "input"
        case Join():
            return "result"
        case Collective():
            return "collective"
    return "loop" if op.bodies else "value"


def _order(scope: Sequence[Axis], axis: Axis) -> int:
    return scope.index(axis) if axis in scope else len(scope)


def _jax_array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else jnp.asarray(value)


def _strong(value: StackedValue, var: Var) -> StackedValue:
    """Return a value with the dtype that it has in the program, for a loop."""
    array = jnp.asarray(value.array)
    if array.dtype != var.dtype:
        array = array.astype(var.dtype)
    return StackedValue(array, value.dims)


def _row(value: StackedValue, iteration: int) -> StackedValue:
    """Return the slice of a stacked input for one iteration, along the first local dimension."""
    rank = np.ndim(value.array)
    dim = next(d for d in range(rank) if d not in value.dims.values())
    array = jax.lax.index_in_dim(value.array, iteration, dim, keepdims=False)
    return StackedValue(array, {axis: d - (d > dim) for axis, d in value.dims.items()})


def _plain_array(array: jax.Array) -> jax.Array:
    """Return an array that NumPy can hold: the numbers of random keys."""
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(array) if is_key else array


def _parts(
    array: np.ndarray, dims: Mapping[Axis, int], over: Sequence[Axis], var: Var
) -> dict[tuple[int, ...], Part]:
    """Return a part for each coordinate along `over`."""
    stacked = np.moveaxis(_widened(array), [dims[axis] for axis in over], range(len(over)))
    return {
        at: _part(np.asarray(stacked[at]), var) for at in np.ndindex(stacked.shape[: len(over)])
    }


def _part(numbers: np.ndarray, var: Var) -> Part:
    kind = tuple(var.shape), var.kind
    if numbers.size <= WHOLE or numbers.dtype.kind not in "iuf":
        return Part(*kind, numbers)
    normalized = numbers
    if numbers.dtype.kind == "f":  # all zeros are equal, and so are NaNs
        normalized = np.where(numbers == 0, 0, np.where(np.isnan(numbers), np.nan, numbers))
    with np.errstate(invalid="ignore"):  # the mean of infinities is NaN
        mean = float(numbers.mean(dtype=np.float64))
    return Part(
        *kind,
        numbers.reshape(-1)[:6].copy(),  # the rest is not kept
        numbers.min().item(),
        numbers.max().item(),
        mean,
        hash(normalized.tobytes()),
    )


def _widened(array: np.ndarray) -> np.ndarray:
    """Return bfloat16 and float8 as float32, which NumPy can print; other arrays unchanged.

    Tangents of integers (`float0`) have no values, and become false.
    """
    if array.dtype == jax.dtypes.float0:
        return np.zeros(array.shape, np.bool_)
    supported = array.dtype.kind in "iufbc" and array.dtype.itemsize <= 16
    return array if supported and array.dtype.isbuiltin == 1 else array.astype(np.float32)
