"""What only moves elements is done after a reduction over devices, not before it.

Autodiff ends the gradient of `x @ w` with a transpose, and the devices are summed after that. The
sum of transposed arrays is the transposed sum, element by element in the same order:

    psum(transpose(x))   becomes   transpose(psum(x))

So the devices transpose nothing, once for all of them is enough. And XLA, which would make one
operation of a product and the transpose after it, is left the product as it was written: on a CPU
the other can take several times as long. On a GPU it does not, and a transposed total would be one
more array: this is for the CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from ..._program import Body, Collective, Leaf, Op, Scan, Var, is_move
from ..._program.primitives import REDUCTIONS
from .deadlock import Watch
from .plan import count_uses


def later(ops: Sequence[Op], keep: Iterable[Var], watch: Watch) -> list[Op]:
    """The list with such operations after the reductions, in its loops too."""
    ops = [_loop(op, watch) if isinstance(op, Scan) else op for op in ops]
    uses = count_uses(ops, keep)
    makers = {var: op for op in ops for var in op.outs}
    out: list[Op] = []
    gone: set[int] = set()
    for op in ops:
        moves = _before(op, makers, uses)
        gone.update(map(id, moves))
        out += _exchanged(op, moves) if isinstance(op, Collective) and moves else [op]
    return [op for op in out if id(op) not in gone]


def _loop(op: Scan, watch: Watch) -> Scan:
    if not op.meets or watch.concerns([op]):
        return op
    body = op.body
    ops = later(body.ops, [atom for atom in body.outs if isinstance(atom, Var)], watch)
    return dataclasses.replace(op, body=Body(body.ins, ops, body.outs))


def _before(op: Op, makers: dict[Var, Op], uses: dict[Var, int]) -> list[Leaf]:
    """The operations before a reduction that can come after it, the last one first."""
    moves: list[Leaf] = []
    if not isinstance(op, Collective) or op.name not in REDUCTIONS or op.groups is not None:
        return moves
    (var,) = op.ins
    while isinstance(var, Var) and uses[var] == 1:
        move = makers.get(var)
        if not isinstance(move, Leaf) or not is_move(move) or not isinstance(move.ins[0], Var):
            break
        moves.append(move)
        (var,) = move.ins
    return moves


def _exchanged(op: Collective, moves: Sequence[Leaf]) -> list[Op]:
    """The reduction of what the first of the operations takes, and then all of them."""
    (taken,), (made,) = moves[-1].ins, op.outs
    assert isinstance(taken, Var)
    now = _like(taken, made)
    out: list[Op] = [dataclasses.replace(op, ins=[taken], outs=[now])]
    for move in reversed(moves):
        then = made if move is moves[0] else _like(move.outs[0], made)
        out.append(dataclasses.replace(move, ins=[now], outs=[then], needs=made.axes))
        now = then
    return out


def _like(var: Var, reduced: Var) -> Var:
    out = Var(var.shape, var.dtype)
    out.axes = reduced.axes
    return out
