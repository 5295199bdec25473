"""Move operations that only reorder elements from before a reduction over devices to after it.

Autodiff ends the gradient of `x @ w` with a transpose, and the sum over devices follows. The sum of
transposed arrays is the transposed sum, element by element in the same order:

    psum(transpose(x))   becomes   transpose(psum(x))

So the transpose runs once instead of on each device. And XLA does not fuse a product with the
transpose after it, which on a CPU can take several times as long. On a GPU the fused operation is
not slower, and a transposed total would be one more array, so this pass is for CPUs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from ..._program import Body, Collective, Leaf, Op, Scan, Var, is_move
from ..._program.primitives import REDUCTIONS
from .deadlock import DivergenceWatch
from .plan import count_uses


def delay_moves(ops: Sequence[Op], keep: Iterable[Var], watch: DivergenceWatch) -> list[Op]:
    """Move such operations after the reductions, in loops too."""
    ops = [_loop(op, watch) if isinstance(op, Scan) else op for op in ops]
    uses = count_uses(ops, keep)
    producers = {var: op for op in ops for var in op.outs}
    out: list[Op] = []
    removed: set[int] = set()
    for op in ops:
        moves = _movable(op, producers, uses)
        removed.update(map(id, moves))
        out += _exchanged(op, moves) if isinstance(op, Collective) and moves else [op]
    return [op for op in out if id(op) not in removed]


def _loop(op: Scan, watch: DivergenceWatch) -> Scan:
    if not op.meets or watch.concerns([op]):
        return op
    body = op.body
    ops = delay_moves(body.ops, [atom for atom in body.outs if isinstance(atom, Var)], watch)
    return dataclasses.replace(op, body=Body(body.ins, ops, body.outs))


def _movable(op: Op, producers: dict[Var, Op], uses: dict[Var, int]) -> list[Leaf]:
    """Return the operations before a reduction that can come after it, last one first."""
    moves: list[Leaf] = []
    if not isinstance(op, Collective) or op.name not in REDUCTIONS or op.groups is not None:
        return moves
    (var,) = op.ins
    while isinstance(var, Var) and uses[var] == 1:
        move = producers.get(var)
        if not isinstance(move, Leaf) or not is_move(move) or not isinstance(move.ins[0], Var):
            break
        moves.append(move)
        (var,) = move.ins
    return moves


def _exchanged(op: Collective, moves: Sequence[Leaf]) -> list[Op]:
    """Return the reduction of the operand of the first operation, and then the operations."""
    (operand,), (result,) = moves[-1].ins, op.outs
    assert isinstance(operand, Var)
    value = _like(operand, result)
    out: list[Op] = [dataclasses.replace(op, ins=[operand], outs=[value])]
    for move in reversed(moves):
        output = result if move is moves[0] else _like(move.outs[0], result)
        out.append(dataclasses.replace(move, ins=[value], outs=[output], needs=result.axes))
        value = output
    return out


def _like(var: Var, reduced: Var) -> Var:
    out = Var(var.shape, var.dtype)
    out.axes = reduced.axes
    return out
