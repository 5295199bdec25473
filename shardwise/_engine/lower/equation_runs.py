"""Copy runs of JAX equations without communication into the lowered program, instead of tracing
them again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ... import _jax
from ..._program import Leaf, Op, Var
from .context import Env, read
from .plan import BlockSum, count_uses
from .value import StackedValue

SHORTEST = 4
"""Shorter runs are traced as quickly."""


class CopiedRun:
    """A run of equations, and the results that are used outside it."""

    def __init__(self, ops: Sequence[Leaf | BlockSum], results: Sequence[Var]):
        self.ops, self.results = ops, results

    def write(self, env: Env) -> None:
        """Run it, and write the results to `env`."""
        run = _jax.EquationRun()
        for op in self.ops:
            for atom in op.ins:
                if not run.knows(atom):
                    run.give(atom, read(env, atom).array)
            for leaf in _equations(op):
                outs = [(var, var.shape, var.dtype) for var in leaf.outs]
                run.add(leaf.primitive, leaf.params, leaf.ins, outs, leaf.source)
            if isinstance(op, BlockSum):
                # There is only one device here, so its value is the sum.
                last = op.joint.ops[-1].outs[0] if op.joint else op.ins[0]
                run.alias(last, op.outs[0])
        env.update(zip(self.results, map(StackedValue, run.apply(self.results)), strict=True))


def split_runs(ops: Sequence[Op], keep: Sequence[Var]) -> Iterator[CopiedRun | Sequence[Op]]:
    """Split a list into runs of equations and the operations between them."""
    if len(ops) < SHORTEST or not _jax.copies_equations():
        yield ops
        return
    uses = None
    for plain, group in itertools.groupby(ops, _is_equation):
        part = list(group)
        if not plain or len(part) < SHORTEST:
            yield part
            continue
        uses = uses or count_uses(ops, keep)
        uses_inside = count_uses(part, ())
        outputs = [var for op in part for var in op.outs]
        needed = [var for var in outputs if uses.get(var, 0) > uses_inside.get(var, 0)]
        yield CopiedRun([op for op in part if isinstance(op, Leaf | BlockSum)], needed)


def _equations(op: Op) -> Sequence[Leaf]:
    if isinstance(op, BlockSum):
        return op.joint.ops if op.joint else ()
    return [op] if isinstance(op, Leaf) else ()


def _is_equation(op: Op) -> bool:
    is_leaf = isinstance(op, Leaf | BlockSum)
    return is_leaf and all(leaf.primitive is not None for leaf in _equations(op))
