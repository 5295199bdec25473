"""What is said to be redundant, held against numbers: a program is run, each claim looked at.

python -m tests.explain.claims --count 1000 --seed 1
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax

import shardwise as sw
from shardwise._analysis.explain.avoid import plans
from shardwise._analysis.explain.explain import _operations
from shardwise._analysis.explain.instead import Avoidance
from shardwise._analysis.inspect.record import StepRecorder
from shardwise._analysis.inspect.seen import IterationContext, StackedResult
from shardwise._engine.lower import DivergenceWatch, StackedValue
from shardwise._engine.tracing import Tracing
from shardwise._meaning import keep
from shardwise._program import Collective, Op, Var, walk

from .. import compiled

NEAR = 2e-4


def wrong_claims(f: Any, args: Any, mesh: Any) -> tuple[Counter, list[str]]:
    """How many claims of each kind there are, and those that the numbers contradict."""
    traced = Tracing(f, mesh)(tuple(args), {})
    body = _operations(traced)
    constants = traced.values[: len(traced.values) - traced.argument_tree.num_leaves]
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
        watch = DivergenceWatch(body.ops)
        program: Any = SimpleNamespace(body=body, watch=watch, jaxpr=traced.program.jaxpr)
        self.recorder = StepRecorder(program)
        ins = [StackedValue(jnp.asarray(value)) for value in traced.values]
        self.recorder._list(body, ins, IterationContext())
        self.at: dict[Any, StackedValue] = {}
        self.order: list[StackedResult] = []
        for one in self.recorder._seen:
            self.at[one.op.outs[one.out], one.around.iteration] = one.value
            self.order.append(one)
        self.turns: dict[Var, list[Any]] = {}
        for var, turn in self.at:
            self.turns.setdefault(var, []).append(turn)
        self.readers: dict[Var, list[Op]] = {}
        for op in walk(body.ops):
            for atom in op.ins:
                if isinstance(atom, Var):
                    self.readers.setdefault(atom, []).append(op)

    def against(self, op: Collective, plan: Avoidance) -> Iterator[str]:
        """What the numbers have against a claim."""
        out = op.outs[0]
        for turn in self.turns.get(out, []):
            result = self.at[out, turn]
            operand = self.at.get((op.ins[0], turn))
            match plan.kind:
                case "same" if operand is not None:
                    rest = {name for other in plan.others for name in other.axes}
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
                case "every iteration":
                    (*outer, _) = turn
                    others = [t for t in self.turns[out] if t[:-1] == tuple(outer)]
                    if not all(alike(result, self.at[out, other]) for other in others):
                        yield "it changes from turn to turn"
        if plan.kind in ("merged", "scattered", "reduced") and not plan.others:
            yield "nothing is sent instead"

    def before(self, op: Op, turn: Any) -> Iterator[StackedValue]:
        """Values that were there before an operation, in the same turn or outside the loop."""
        for one in self.order:
            if one.op is op and one.around.iteration == turn:
                return
            yield one.value
        yield from ()


def differs_along(value: StackedValue, axis: Any) -> bool:
    """Whether devices along an axis have different numbers."""
    if axis not in value.dims:
        return False
    rows = np.moveaxis(_numbers(value), value.dims[axis], 0)
    return not all(_near(row, rows[0]) for row in rows)


def alike(a: StackedValue, b: StackedValue) -> bool:
    """Whether all devices have the same in both."""
    axes = sorted({*a.dims, *b.dims})
    x, y = _stacked(a, axes), _stacked(b, axes)
    return x.ndim == y.ndim and x.shape[len(axes) :] == y.shape[len(axes) :] and _near(x, y)


def _stacked(value: StackedValue, axes: list[Any]) -> np.ndarray:
    array = _numbers(value)
    own = [axis for axis in axes if axis in value.dims]
    array = np.moveaxis(array, [value.dims[axis] for axis in own], range(len(own)))
    missing = tuple(place for place, axis in enumerate(axes) if axis not in value.dims)
    return np.expand_dims(array, missing)


def _numbers(value: StackedValue) -> np.ndarray:
    array = np.asarray(value.array)
    return array.astype(np.complex128) if array.dtype.kind == "c" else array.astype(np.float64)


def _near(a: np.ndarray, b: np.ndarray) -> bool:
    with np.errstate(all="ignore"):
        scale = max(1.0, float(np.max(np.abs(np.where(np.isfinite(a), a, 0)), initial=0)))
        return bool(np.allclose(a, b, rtol=NEAR, atol=NEAR * scale, equal_nan=True))


# --- random programs that send much for nothing

SIDE = 8
"""Every value of a random program is of this size along both dimensions, on each device."""

MESHES = ({"a": 2}, {"a": 4}, {"a": 2, "b": 2}, {"a": 4, "b": 2})


def wasteful(seed: Any) -> tuple[Any, list[Any], dict[str, int]]:
    """A program, its arguments and the sizes of its mesh."""
    choose = random.Random(repr(seed))
    sizes = choose.choice(MESHES)
    names = tuple(sizes)
    specs = [P(), P(names), P("a"), P(None, names[-1])]
    shapes = [
        tuple(
            SIDE * math.prod(sizes[n] for n in _names(entry)) for entry in (*spec, None, None)[:2]
        )
        for spec in specs
    ]
    numbers = np.random.default_rng(choose.randrange(1 << 30))
    args = [numbers.normal(size=shape).astype(np.float32) for shape in shapes]
    state, length = choose.getstate(), choose.randint(4, 10)

    def body(*parts: Any) -> Any:
        own = random.Random()
        own.setstate(state)
        pool = list(parts)
        for _ in range(length):
            pool.append(own.choice(MOVES)(own, pool, names, sizes))
        return tuple(own.choice(pool[2:])[None] for _ in range(2))

    def f(*args: Any, mesh: Any) -> Any:
        out = P(names)
        sharded = jax.shard_map(
            body, mesh=mesh, in_specs=tuple(specs), out_specs=(out, out), check_vma=False
        )
        return sharded(*args)

    return f, args, sizes


def _names(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def _pick(own: random.Random, pool: list[Any]) -> Any:
    return own.choice(pool[-4:])


def _local(own, pool, names, sizes):
    x, y = _pick(own, pool), _pick(own, pool)
    kinds = (lambda: x + y, lambda: y * x, lambda: jnp.tanh(x), lambda: 2 * x, lambda: x.T)
    return own.choice(kinds)()


def _reduced(own, pool, names, sizes):
    over = own.choice([names[0], names[-1], names])
    return own.choice([lax.psum, lax.pmean, lax.pmax])(_pick(own, pool), over)


def _gathered(own, pool, names, sizes):
    name = own.choice(names)
    n, x = sizes[name], _pick(own, pool)
    whole = lax.all_gather(x, name, tiled=True)
    index = (lax.axis_index(name) + own.choice([0, 0, 0, 1])) % n
    kinds = (
        lambda: lax.dynamic_slice_in_dim(whole, index * SIDE, SIDE, 0),
        lambda: whole[:SIDE],
        lambda: lax.all_gather(x, name).sum(0),
        lambda: jnp.broadcast_to(whole.sum(0), (SIDE, SIDE)),
        lambda: whole.reshape(n, SIDE, SIDE).max(0),
    )
    return own.choice(kinds)()


def _dealt(own, pool, names, sizes):
    name = own.choice(names)
    n, x = sizes[name], _pick(own, pool)
    d = own.choice([0, 1])
    kinds = (
        lambda: lax.psum_scatter(x, name, scatter_dimension=d, tiled=True),
        lambda: lax.dynamic_slice_in_dim(
            lax.psum(x, name), lax.axis_index(name) * (SIDE // n), SIDE // n, d
        ),
    )
    return lax.all_gather(own.choice(kinds)(), name, axis=d, tiled=True)


def _exchanged(own, pool, names, sizes):
    name = own.choice(names)
    x = _pick(own, pool)
    y = lax.all_to_all(x, name, 1, 0, tiled=True)
    if own.random() < 0.6:
        return lax.all_to_all(y, name, 0, 1, tiled=True)
    return y.reshape(SIDE, SIDE)


def _passed(own, pool, names, sizes):
    name = own.choice(names)
    n, x = sizes[name], _pick(own, pool)
    y = lax.ppermute(x, name, [(i, (i + 1) % n) for i in range(n)])
    if own.random() < 0.3:
        return lax.ppermute(x, name, [(i, i + 1) for i in range(n - 1)])
    back = own.choice([1, 1, 2])
    return lax.ppermute(y, name, [(i, (i - back) % n) for i in range(n)])


def _looped(own, pool, names, sizes):
    name, x, y = own.choice(names), _pick(own, pool), _pick(own, pool)
    kinds = (
        lambda c: c + lax.psum(y, name),
        lambda c: lax.pmean(c, name) + y,
        lambda c: c + lax.pmax(c * y, name),
        lambda c: c + lax.psum(y, name) * lax.pmean(x, name),
    )
    turn = own.choice(kinds)
    return lax.scan(lambda c, _: (turn(c), None), x, None, length=3)[0]


def _hop(x, name, n, by=1):
    return lax.ppermute(x, name, [(i, (i + by) % n) for i in range(n)])


def _shared(own, pool, names, sizes):
    """Shares of a sum, which travel: each device then has another one."""
    name = own.choice(names)
    n, x, y = sizes[name], _pick(own, pool), own.choice(pool[1:3])
    share = y.T @ y
    kinds = (
        lambda: _hop(share, name, n),
        lambda: _hop(_hop(share, name, n), name, n, own.choice([-1, 1])),
        lambda: lax.all_gather(share, name, tiled=True)[:SIDE],
        lambda: lax.psum(_hop(share, name, n), name),
        lambda: _hop(share, name, n) + lax.psum(_hop(share, name, n) * 2, own.choice(names)),
        lambda: lax.scan(lambda c, _: (_hop(c, name, n), None), share, None, length=3)[0],
        lambda: lax.scan(lambda c, _: (c + _hop(share, name, n), None), x, None, length=3)[0],
        lambda: jax.grad(lambda w: jnp.sum((y @ _hop(y @ w, name, n).T) ** 2))(x),
    )
    return own.choice(kinds)()


def _own(own, pool, names, sizes):
    return _pick(own, pool) * (1.0 + lax.axis_index(own.choice(names)))


def _again(own, pool, names, sizes):
    x, name = _pick(own, pool), own.choice(names)
    return lax.psum(x + 1, name) * lax.psum(1 + x, name)


MOVES = (
    _local, _reduced, _reduced, _gathered, _dealt, _exchanged, _passed, _looped, _shared, _own,
    _again,
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", default="1")
    asked = parser.parse_args()
    total: Counter[str] = Counter()
    wrong = 0
    for number in range(asked.count):
        f, args, sizes = wasteful((asked.seed, number))
        with compiled.in_a_hurry():
            counts, failures = wrong_claims(f, args, sw.mesh(**sizes))
        total += counts
        wrong += bool(failures)
        for failure in failures:
            print(f"program {number}: {failure}", flush=True)
        if number % 50 == 49:
            jax.clear_caches()
    print(", ".join(f"{count:,} {kind}" for kind, count in total.most_common()))
    print(f"{wrong} programs with a false claim")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
