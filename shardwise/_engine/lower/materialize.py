"""Materialize broadcasts that loops of the program read, before these loops.

Autodiff moves a mask out of the loop over layers in which it is written, in the shape of what is
masked. On a device it is an array then. Here it is computed before the loop over the devices, and
XLA moves its broadcast into both loops, to where it is read. For a GPU it chooses the tiles of a
softmax by the bytes that these read, and combines the rows of all heads to read a row of a small
mask only once, which is slower than the tiles it chooses for the mask of the device
(`benchmarks/RESULTS.md`, the transformer on one GPU). So the broadcast is computed where it is
written. A CPU has no tiles: this is for others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jax import lax

from ..._program import Leaf, Op, Scan, Var, While


def materialize_broadcasts(ops: Sequence[Op]) -> list[Op]:
    """Materialize such broadcasts, if they are the same on all devices."""
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
