"""Materialize broadcasts that loops of the program read, before these loops.

Autodiff moves a mask, broadcast to the shape of the masked array, out of the loop over layers. On a
real device it is then an array in memory. Here it is computed before the loop over the devices, and
XLA moves its broadcast into both loops. On a GPU, XLA then chooses tiles for the softmax that
combine the rows of all heads to read each row of the small mask once, which is slower than the
tiles it chooses for a full mask (`benchmarks/RESULTS.md`, the transformer on one GPU). So the
broadcast is computed before the loop. This pass is not for CPUs, which have no tiles.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jax import lax

from ..._program import Leaf, Op, Scan, Var, While


def materialize_broadcasts(ops: Sequence[Op]) -> list[Op]:
    """Materialize broadcasts that loops read, if they are the same on all devices."""
    read = {atom for op in ops for atom in _constants(op)}
    return [_materialized(op) if _broadcasts(op) and op.outs[0] in read else op for op in ops]


def _constants(op: Op) -> Sequence[Any]:
    if isinstance(op, Scan):
        return op.ins[: op.consts]
    return op.ins[: op.cond_consts + op.body_consts] if isinstance(op, While) else ()


def _broadcasts(op: Op) -> bool:
    """Return whether this repeats an array, not a scalar, for all devices alike."""
    if not isinstance(op, Leaf) or op.name != "broadcast_in_dim" or op.needs:
        return False
    operand = op.ins[0]
    return isinstance(operand, Var) and math.prod(operand.shape) > 1


def _materialized(op: Op) -> Op:
    assert isinstance(op, Leaf)
    compute = op.run

    def run(*args: Any) -> list[Any]:
        return list(lax.optimization_barrier(tuple(compute(*args))))

    return dataclasses.replace(op, run=run)
