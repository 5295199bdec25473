"""Share repeated parts: unrolled layers of a model are traced and lowered once.

Two parts of a program are equal if they apply the same operations to values of the same types. The
first one is traced in place; the following ones are calls of one function, which XLA inlines before
anything else.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..._mesh import Axis
from ..._program import Collective, Leaf, Lit, Op, Var, comparable, operation_key
from .context import Context, Env, read
from .loop import ShardLoop
from .plan import BlockSum, Stage, reads
from .value import StackedValue

Atoms = Sequence[Var | Lit]
SHORTEST, LONGEST = 3, 300
"""Fewer operations are traced as quickly as a call of a function; more rarely repeat."""


def loop(loop: ShardLoop) -> None:
    """Run a loop; afterwards its `env` has what is kept and the results of the folds."""
    cx = loop.cx
    short = len(loop.ops) <= LONGEST
    if cx.repeats is None or cx.coords or not short or cx.watch.concerns(loop.ops):
        loop.run()
        return
    inputs = reads(loop.ops)
    key = _of_loop(loop, inputs)
    outs = [*loop.keep, *(fold.op.outs[0] for fold in loop.folds)]

    def run(env: Env) -> None:
        dataclasses.replace(loop, env=env, cx=cx.fresh()).run()

    _run(run, key, inputs, outs, loop.env, cx)


BLOCK = 12
"""How many stages one call covers where equal ones follow each other."""

REGULAR = 0.9
"""The share of stages that must match a pattern; the others are traced in place."""


def blocks(row: Sequence[Stage]) -> Iterator[Sequence[Stage]]:
    """Split consecutive stages into blocks that repeat, if there is a pattern."""
    kinds = [tuple(_kind(op) for op in (*stage.inside, *stage.meetings)) for stage in row]
    size = 1
    for period in range(1, BLOCK + 1) if len(row) >= 4 * BLOCK else ():
        repeats = sum(map(operator.eq, kinds, kinds[period:]))
        if repeats >= REGULAR * len(row):
            size = period * (BLOCK // period)
            break
    return (row[i : i + size] for i in range(0, len(row), size))


def flat(
    ops: Sequence[Op],
    axes: Sequence[Axis],
    keep: Sequence[Var],
    env: Env,
    cx: Context,
    run: Callable[[Env], None],
) -> None:
    """Run stages without a loop, and their collectives; scalars in them may differ."""
    supported = all(isinstance(op, Leaf | Collective) for op in ops)
    if cx.repeats is None or cx.coords or not supported or len(ops) < SHORTEST:
        run(env)
        return
    inputs: list[Var | Lit] = list(reads(ops))
    inputs += dict.fromkeys(atom for op in ops for atom in op.ins if _is_number(atom))
    ops_key, number = _of_ops(ops, inputs)
    key = ops_key and (ops_key, tuple(axes), tuple(number[var] for var in keep))
    _run(run, key, inputs, keep, env, cx)


def _run(
    run: Callable[[Env], None], key: Any, ins: Atoms, outs: Sequence[Var], env: Env, cx: Context
) -> None:
    assert cx.repeats is not None
    if key is None or key not in cx.repeats:
        cx.repeats[key] = None
        run(env)
        return

    def repeated(values: list[StackedValue]) -> list[StackedValue]:
        local: Env = dict(zip(ins, values, strict=True))
        run(local)
        return [local[var] for var in outs]

    call = cx.repeats[key] = cx.repeats[key] or jax.jit(repeated)
    env.update(zip(outs, call([read(env, atom) for atom in ins]), strict=True))


def _of_loop(loop: ShardLoop, inputs: Sequence[Var]) -> Any:
    """Return a key for what a loop computes; None if unknown."""
    ops, number = _of_ops(loop.ops, inputs)
    if ops is None:
        return None
    folds = tuple(
        (
            operation_key(fold.op),
            fold.op.scope,
            number[fold.operand],
            _type(fold.op.outs[0]),
            fold.name,
            fold.within and loop.ops.index(fold.within),
        )
        for fold in loop.folds
    )
    keep = tuple((number[var], number.get(loop.grown.get(var))) for var in loop.keep)
    return ops, folds, loop.axis, tuple(loop.rest), keep


def _of_ops(ops: Sequence[Op], inputs: Atoms) -> tuple[Any, dict[Any, Any]]:
    """Return a key for what a list computes, or None; and its values, numbered by appearance."""
    number: dict[Any, Any] = {atom: (i, _type(atom)) for i, atom in enumerate(inputs)}
    keys = []
    for op in ops:
        key = _operation_key(op)
        if key is None:
            return None, number
        ins = tuple(number[atom] if atom in number else comparable(atom) for atom in op.ins)
        number |= {var: (len(number) + i, _type(var)) for i, var in enumerate(op.outs)}
        keys.append((key, ins, tuple(map(_type, op.outs)), op.scope, op.needs, op.meets))
    return tuple(keys), number


def _operation_key(op: Op) -> Any:
    if not isinstance(op, BlockSum):
        return operation_key(op)
    key, _ = _of_ops(op.joint.ops, op.joint.ins) if op.joint else ((), {})
    return None if key is None else ("sum", key)


def _kind(op: Op) -> Any:
    """Return a coarse key of an operation."""
    return op.name if isinstance(op, Leaf) else operation_key(op) or type(op)


def _is_number(atom: Var | Lit) -> bool:
    return isinstance(atom, Lit) and np.shape(atom.value) == ()


def _type(atom: Var | Lit) -> Any:
    if isinstance(atom, Lit):
        return jax.typeof(atom.value), atom.axes
    return atom.shape, atom.dtype, atom.weak, atom.axes
