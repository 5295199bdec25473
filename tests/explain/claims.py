"""What is said to be redundant, held against numbers: a program is run, and each claim looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

from shardwise._explain.avoid import Plan, plans
from shardwise._explain.explain import _operations
from shardwise._inspect.record import Around, Recorder, _Seen
from shardwise._lower import Value, Watch
from shardwise._meaning import keep
from shardwise._program import Collective, Op, Var, walk
from shardwise._simulate import Tracing

NEAR = 2e-4


def wrong_claims(f: Any, args: Any, mesh: Any) -> tuple[Counter, list[str]]:
    """How many claims of each kind there are, and those that the numbers contradict."""
    traced = Tracing(f, mesh)(tuple(args), {})
    body = _operations(traced)
    constants = traced.values[: len(traced.values) - traced.given.num_leaves]
    found = plans(body, keep(body, constants, traced.argument_paths))
    if not found:
        return Counter({"programs": 1}), []
    seen = Seen(body, traced)
    counts = Counter({"programs": 1})
    failures = []
    for op in walk(body.ops):
        plan = found.get(id(op))
        if isinstance(op, Collective) and plan is not None:
            counts[plan.kind] += 1
            failures += [f"{plan.kind} at {op}: {why}" for why in seen.against(op, plan)]
    return counts, failures


class Seen:
    """All values of a program, as numbers."""

    def __init__(self, body: Any, traced: Any):
        watch = Watch(body.ops)
        program: Any = SimpleNamespace(body=body, watch=watch, jaxpr=traced.program.jaxpr)
        self.recorder = Recorder(program)
        ins = [Value(jnp.asarray(value)) for value in traced.values]
        self.recorder._list(body, ins, Around(), watch)
        self.at: dict[Any, Value] = {}
        self.order: list[_Seen] = []
        for one in self.recorder._seen:
            self.at[one.op.outs[one.out], one.around.turn] = one.value
            self.order.append(one)
        self.turns: dict[Var, list[Any]] = {}
        for var, turn in self.at:
            self.turns.setdefault(var, []).append(turn)
        self.readers: dict[Var, list[Op]] = {}
        for op in walk(body.ops):
            for atom in op.ins:
                if isinstance(atom, Var):
                    self.readers.setdefault(atom, []).append(op)

    def against(self, op: Collective, plan: Plan) -> Iterator[str]:
        """What the numbers have against a claim."""
        out = op.outs[0]
        for turn in self.turns.get(out, []):
            result = self.at[out, turn]
            operand = self.at.get((op.ins[0], turn))
            match plan.kind:
                case "same" if operand is not None:
                    rest = {axis.name for other in plan.others for axis in other.axes}
                    for axis in op.axes:
                        if axis.name not in rest and differs_along(operand, axis):
                            yield f"the operand differs along {axis.name}"
                case "held" | "repeated" | "recomputed":
                    if not any(alike(result, one) for one in self.before(op, turn)):
                        yield "nothing before it has these numbers"
                case "unused" if operand is not None:
                    for user in self.readers[out]:
                        again = self.at[user.outs[0], turn]
                        if user.outs[0].shape == out.shape and not alike(again, operand):
                            yield "what is made of it is not what went in"
                case "every turn":
                    (*outer, _) = turn
                    others = [t for t in self.turns[out] if t[:-1] == tuple(outer)]
                    if not all(alike(result, self.at[out, other]) for other in others):
                        yield "it changes from turn to turn"
        if plan.kind in ("merged", "scattered", "reduced") and not plan.others:
            yield "nothing is sent instead"

    def before(self, op: Op, turn: Any) -> Iterator[Value]:
        """Values that were there before an operation, in the same turn or outside the loop."""
        for one in self.order:
            if one.op is op and one.around.turn == turn:
                return
            yield one.value
        yield from ()


def differs_along(value: Value, axis: Any) -> bool:
    """Whether devices along an axis have different numbers."""
    if axis not in value.dims:
        return False
    rows = np.moveaxis(_numbers(value), value.dims[axis], 0)
    return not all(_near(row, rows[0]) for row in rows)


def alike(a: Value, b: Value) -> bool:
    """Whether all devices have the same in both."""
    axes = sorted({*a.dims, *b.dims})
    x, y = _stacked(a, axes), _stacked(b, axes)
    return x.ndim == y.ndim and x.shape[len(axes) :] == y.shape[len(axes) :] and _near(x, y)


def _stacked(value: Value, axes: list[Any]) -> np.ndarray:
    array = _numbers(value)
    own = [axis for axis in axes if axis in value.dims]
    array = np.moveaxis(array, [value.dims[axis] for axis in own], range(len(own)))
    missing = tuple(place for place, axis in enumerate(axes) if axis not in value.dims)
    return np.expand_dims(array, missing)


def _numbers(value: Value) -> np.ndarray:
    array = np.asarray(value.array)
    return array.astype(np.complex128) if array.dtype.kind == "c" else array.astype(np.float64)


def _near(a: np.ndarray, b: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        scale = max(1.0, float(np.max(np.abs(np.where(np.isfinite(a), a, 0)), initial=0)))
        return bool(np.allclose(a, b, rtol=NEAR, atol=NEAR * scale, equal_nan=True))
