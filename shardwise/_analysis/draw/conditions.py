"""Record which conditions of a program were true, and which were false, for the values drawn.

A fault that shows only where `x.mean() == 0` needs data for which it is. So the program is
evaluated on the mesh once more, and returns for each comparison whether it was ever true and ever
false on any device, for each `cond` which branches were taken, and for each search, as by `argmax`,
whether two elements were equal.
"""

from __future__ import annotations

import ast
import dataclasses
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..._program import (
    Atom,
    Body,
    Cond,
    Leaf,
    Lit,
    Op,
    Scan,
    Var,
    Where,
    While,
    annotate,
    live,
    pairs,
    twin,
    walk,
)
from ..._program.liveness import carried, needed
from ..._program.primitives import of
from ..lift import Run, eps_of
from .arguments import DrawnArguments
from .bounds import literal
from .special import special_ways

Flags = dict[int, Var]
"""For the conditions of a body, by number, the values that say what was seen of them."""

FEW = 5
"""The number of constants of the program that are drawn."""

OUTCOMES = ("was never true", "was never false")

ASKS = {"isnan", "isinf", "isfinite", "isposinf", "isneginf", "isclose", "equal", "not_equal"}
"""Functions that are comparisons, besides the operators of Python."""


class Conditions:
    """The conditions of a program that depend on drawn values, and what was seen of them.

    They are observed on the mesh, where parts of an array are compared, and on one device, where
    all equal elements are seen by one `argmax`.
    """

    def __init__(self, drawing: DrawnArguments, run: Run, base: Run, results: Sequence[int]):
        self.drawing, self.run = drawing, run
        self._mesh, self._base = (
            ConditionRecord(one, drawing.inputs(one), results) for one in (run, base)
        )

    @property
    def has_ties(self) -> bool:
        """Whether the values seen last have equal elements where the program orders them."""
        rows = zip(self._base.ops, self._base.now, strict=True)
        return any(is_search(op) and now.any() for op, now in rows)

    @property
    def unseen(self) -> list[tuple[Op, int]]:
        """The conditions with an outcome that was never seen, and its number."""
        known = {(op.where, outcome) for op, outcome in self._base.outcomes(True)}
        rows = self._mesh.outcomes(False)
        return [(op, outcome) for op, outcome in rows if (op.where, outcome) not in known]

    def see(self, args: tuple[Any, ...]) -> bool:
        """Evaluate the conditions for these arguments; return whether an outcome is new."""
        on_mesh, on_base = self._mesh.see(args), self._base.see(args)
        return on_mesh or on_base

    def answers(self, seed: int) -> Iterator[tuple[Any, ...]]:
        """Yield arguments for which a condition has an outcome that was not seen before."""
        ways = [] if self._may_hang else special_ways(self._numbers())
        for number, how in enumerate(ways):
            if not self.unseen:
                return
            args = self.drawing.special(seed + number, how)
            if self.see(args):
                yield args

    @property
    def _may_hang(self) -> bool:
        """Whether a loop may run forever with special values, as its end depends on floats."""
        loops = (op for op in walk(self.run.body.ops) if isinstance(op, While))
        decided_by = (needed(loop.cond, loop.cond.outs[0]) & {*loop.cond.ins} for loop in loops)
        dtypes = {var.dtype for values in decided_by for var in values if isinstance(var, Var)}
        return not all(jnp.issubdtype(dtype, jnp.integer) for dtype in dtypes)

    def _numbers(self) -> list[float]:
        """Return the first few numbers that floats are compared with."""
        makers = {out: op for op in walk(self.run.body.ops) for out in op.outs}
        atoms = [atom for op in self._mesh.ops if isinstance(op, Leaf) for atom in op.ins]
        numbers = [n for n in (literal(atom, makers) for atom in atoms) if n is not None]
        return [*dict.fromkeys(float(n) for n in numbers if eps_of(n.dtype))][:FEW]

    def unmet(self) -> list[tuple[Where, str]]:
        """Return the conditions of the user's source with an outcome that was never seen."""
        rows: dict[Where, str] = {}
        for op, outcome in self.unseen:
            text = _written(op)
            if text:
                never = "never had equal elements" if is_search(op) else OUTCOMES[outcome]
                rows.setdefault(op.where, f"`{text}` {never}")
        return [*rows.items()]


class ConditionRecord:
    """Some conditions of a program on one mesh, and the outcomes that were seen."""

    def __init__(self, run: Run, drawn: Iterable[Var], results: Sequence[int]):
        self.run = run
        data = _computed_from(run.body, drawn)
        ops = walk(live(run.body.ops, [run.body.outs[i] for i in results]))
        ops = [op for op in ops if not data.isdisjoint(op.ins) and _reading(op)]
        numbers = {run.lifted.of(op.outs[0]): i for i, op in enumerate(ops)}
        recorded, flags = _recorded(run.lifted.body.ops, numbers)
        self.body = Body(run.lifted.body.ins, recorded, [*flags.values()])
        annotate(self.body)
        self.ops = [ops[index] for index in flags]
        self.seen = [np.zeros(flag.shape, bool) for flag in flags.values()]
        self.now = self.seen

    def outcomes(self, seen: bool) -> list[tuple[Op, int]]:
        """Return the conditions with the outcomes, by number, that were seen, or were not."""
        rows = zip(self.ops, self.seen, strict=True)
        return [(op, int(k)) for op, flags in rows for k in np.flatnonzero(flags == seen)]

    def see(self, args: tuple[Any, ...]) -> bool:
        """Evaluate the conditions for these arguments; return whether an outcome is new."""
        if not self.ops:
            return False
        before = self.seen
        self.now = [held.rows.any(0) for held in self.run.again(args).evaluate(self.body)]
        self.seen = [old | new for old, new in zip(before, self.now, strict=True)]
        return any((new & ~old).any() for old, new in zip(before, self.now, strict=True))


def is_search(op: Op) -> bool:
    """Return whether an operation takes the positions of floats by their order, as `argmax`."""
    if not isinstance(op, Leaf) or of(op.name).acts != "searches":
        return False
    (operand, *others), keys = op.ins, op.params.get("num_keys", 0)
    is_array = isinstance(operand, Var) and operand.shape != () and eps_of(operand.dtype) > 0
    return is_array and len(others) >= keys


def _reading(op: Op) -> tuple[int, Callable[[Any], Any], Atom] | None:
    """Return how many outcomes a condition has, and how they are computed from which value."""
    if isinstance(op, Cond) and op.outs and isinstance(op.ins[0], Var):
        count = len(op.branches)
        return count, lambda i: jnp.clip(i, 0, count - 1) == jnp.arange(count), op.ins[0]
    if isinstance(op, Leaf) and of(op.name).truth:
        return 2, lambda x: jnp.stack([jnp.any(x), ~jnp.all(x)]), op.outs[0]
    if not isinstance(op, Leaf) or not is_search(op):
        return None
    if op.name not in ("argmax", "argmin"):
        return 1, _has_equal, op.ins[0]
    (axis,) = op.params["axes"]
    best = jnp.max if op.name == "argmax" else jnp.min
    return 1, lambda x: jnp.any((x == best(x, axis, keepdims=True)).sum(axis) > 1)[None], op.ins[0]


def _written(op: Op) -> str:
    """Return the source text of a condition that the user has written; else nothing."""
    where = op.where
    line = linecache.getline(where.file, where.line).encode()[where.column : where.end_column]
    text = line.decode(errors="ignore").strip()
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    called = ast.unparse(tree.func).split(".")[-1] if isinstance(tree, ast.Call) else ""
    searches = isinstance(op, Leaf) and is_search(op) and op.name in called  # jnp.argsort
    return text if isinstance(tree, ast.Compare) or called in ASKS or searches else ""


def _computed_from(body: Body, sources: Iterable[Var]) -> set[Atom]:
    """Return the values that are computed from others, in loops and branches too."""
    ops, result, count = [*walk(body.ops)], set[Atom](sources), -1
    while count != len(result):
        count = len(result)
        for op in ops:
            inputs = op.ins if not op.bodies else op.ins[:1] if isinstance(op, Cond) else []
            if not result.isdisjoint(inputs):
                result |= {*op.outs}
            for _, rows in pairs(op):
                result |= {b for a, b, _ in rows if a in result}
                result |= {a for a, b, _ in rows if b in result and a in op.outs}
            if isinstance(op, Scan | While):
                rows = zip(carried(op), op.body.outs, strict=False)
                result |= {var for var, out in rows if out in result}
    return result


def _recorded(ops: Sequence[Op], numbers: Mapping[Atom, int]) -> tuple[list[Op], Flags]:
    """Return operations that also compute what is seen of the conditions among them.

    A condition is found by its first result, or that of its twin in float64.
    """
    new: list[Op] = []
    flags: Flags = {}

    def compute(count: int, run: Callable[[Any], Any], atom: Atom) -> Var:
        out = Var((count,), np.dtype(bool))
        new.append(Leaf([atom], [out], "record", lambda x: [run(x)]))
        return out

    for op in ops:
        bodies = [op.body] if isinstance(op, Scan | While) else op.bodies
        inside = [_recorded(body.ops, numbers) for body in bodies]
        found = dict.fromkeys(index for _, inner in inside for index in inner)
        outs = [next(twin(inner[i]) for _, inner in inside if i in inner) for i in found]
        none = [Lit(np.zeros(out.shape, bool)) for out in outs]
        longer = [
            Body(body.ins, inner_ops, [*body.outs, *map(inner.get, found, none)])
            for body, (inner_ops, inner) in zip(bodies, inside, strict=True)
        ]
        if not found:
            new.append(op)
        elif isinstance(op, Scan):
            rows = [Var((op.length, *out.shape), out.dtype) for out in outs]
            new.append(dataclasses.replace(op, body=longer[0], outs=[*op.outs, *rows]))
            outs = [compute(row.shape[1], lambda x: x.any(0), row) for row in rows]
        elif isinstance(op, Cond):
            new.append(dataclasses.replace(op, branches=tuple(longer), outs=[*op.outs, *outs]))
        elif isinstance(op, While) and getattr(op.cond.outs[0], "shape", ()) == ():
            new.append(_while(op, longer[0], none, outs))
        else:
            new.append(op)
            continue
        flags |= zip(found, outs, strict=True)
        index, reading = numbers.get(op.outs[0]) if op.outs else None, _reading(op)
        if index is not None and reading is not None:
            flags[index] = compute(*reading)
    return new, flags


def _while(op: While, body: Body, none: list[Lit], outs: list[Var]) -> While:
    """Return a loop that carries what is seen of the conditions in its body."""
    count = len(op.outs)
    old, unused, total = ([twin(out) for out in outs] for _ in range(3))
    either = [
        Leaf([a, b], [c], "or", lambda a, b: [a | b])
        for a, b, c in zip(old, body.outs[count:], total, strict=True)
    ]
    return dataclasses.replace(
        op,
        ins=[*op.ins, *none],
        outs=[*op.outs, *outs],
        cond=Body([*op.cond.ins, *unused], op.cond.ops, op.cond.outs),
        body=Body([*body.ins, *old], [*body.ops, *either], [*body.outs[:count], *total]),
    )


def _has_equal(x: Any) -> Any:
    equal = [jnp.diff(jnp.sort(x, dim), axis=dim) == 0 for dim in range(x.ndim)]
    return jnp.any(jnp.stack(list(map(jnp.any, equal))), keepdims=True)
