"""Sums over stacked results, turned into loops that accumulate the sum.

`lax.map(grad, batches).mean(0)` stacks the results of a loop and adds them up after it. A loop that
carries the sum computes the same; linear operations in between (a `psum`, a cast) come after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np

from .._program import Atom, Body, Collective, Leaf, Lit, Op, Scan, Var, twin
from .leaves import made_leaf, var_like
from .signature import users


def zeros_of(like: Op, var: Var) -> tuple[Leaf, Var]:
    out = twin(var)
    zero = Lit(np.zeros((), var.dtype))
    params = {"shape": tuple(var.shape), "broadcast_dimensions": (), "sharding": None}
    return made_leaf(like, "broadcast_in_dim", [zero], out, **params), out


@dataclasses.dataclass(frozen=True, eq=False)
class Summed:
    """A sum over stacked values: the operation, what is summed, and linear ones in between."""

    op: Leaf
    of: Var
    between: tuple[Op, ...]

    def finish(self, total: Var, gone: int | None) -> list[Op]:
        """Return the operations after the sum of the parts, which lack the dimension `gone`."""
        ops: list[Op] = []
        of = self.of
        for op in self.between:
            out = var_like(op.outs[0], total.shape)
            ins = [total if atom is of else atom for atom in op.ins]
            ops.append(dataclasses.replace(op, ins=ins, outs=[out]))
            of, total = op.outs[0], out
        axes = [d for d in self.op.params["axes"] if d != gone]
        axes = tuple(d - (gone is not None and d > gone) for d in axes)
        params = {**self.op.params, "axes": axes}
        return [*ops, dataclasses.replace(self.op, ins=[total], params=params)]


def sums_in(body: Body) -> Iterable[Summed]:
    """Return the sums in a program, each with what it is a sum of."""
    makers = {out: op for op in body.ops for out in op.outs}
    uses = users(body.ops, body.outs)
    for op in body.ops:
        if not isinstance(op, Leaf) or op.name != "reduce_sum" or not isinstance(op.ins[0], Var):
            continue
        of, between = op.ins[0], []
        while True:
            maker = makers.get(of)
            flows = _linear(maker) if maker is not None else None
            if maker is None or flows is None or len(uses[of]) > 1:
                break
            between.append(maker)
            of = flows
        yield Summed(op, of, tuple(between[::-1]))


def _linear(op: Op) -> Var | None:
    """Return the operand that an operation is a linear function of, element by element."""
    first = op.ins[0] if op.ins else None
    if not isinstance(first, Var) or tuple(op.outs[0].shape) != tuple(first.shape):
        return None
    if isinstance(op, Collective):
        return first if op.name == "psum" and len(op.ins) == 1 and op.groups is None else None
    if not isinstance(op, Leaf):
        return None
    if op.name in ("neg", "copy"):
        return first
    if op.name == "convert_element_type":
        return first if _floats(first) and _floats(op.outs[0]) else None
    scalar = len(op.ins) == 2 and _is_factor(op.ins[1], op.name)
    return first if op.name in ("mul", "div") and scalar and _floats(first) else None


def _is_factor(by: Atom, name: str) -> bool:
    """Return whether an operand is a finite number, and not 0 where it divides."""
    if not isinstance(by, Lit) or np.shape(by.value):
        return False
    return bool(np.isfinite(by.value)) and (name == "mul" or by.value != 0)


def _floats(var: Var) -> bool:
    return jnp.issubdtype(var.dtype, jnp.floating)


def adding_loops(body: Body) -> Body:
    """Replace loops whose stacked results are added up by loops that accumulate the sum."""
    makers = {out: op for op in body.ops for out in op.outs}
    replaced: dict[int, list[Op]] = {}
    for reduction in sums_in(body):
        loop = makers.get(reduction.of)
        if not isinstance(loop, Scan) or 0 not in reduction.op.params["axes"] or loop.effectful:
            continue
        index = loop.outs.index(reduction.of)
        if index >= loop.carry:
            ops, total = _adding(loop, index, reduction.op)
            replaced[id(reduction.op)] = [*ops, *reduction.finish(total, 0)]
    if not replaced:
        return body
    ops = [new for op in body.ops for new in replaced.get(id(op), [op])]
    return Body(body.ins, ops, body.outs)


def _adding(loop: Scan, index: int, like: Op) -> tuple[list[Op], Var]:
    """Return the loop with one more carried value to which every step adds its result."""
    step = loop.body.outs[index]
    shape = loop.outs[index].shape[1:]
    carry, summed, total = (var_like(loop.outs[index], shape) for _ in range(3))
    zeros, start = zeros_of(like, total)
    first, second = loop.consts, loop.consts + loop.carry
    inner = Body(
        [*loop.body.ins[:second], carry, *loop.body.ins[second:]],
        [*loop.body.ops, made_leaf(like, "add", [carry, step], summed)],
        [*loop.body.outs[: loop.carry], summed],
    )
    carried = [twin(out) for out in loop.outs[: loop.carry]]
    new_loop = dataclasses.replace(
        loop,
        ins=[*loop.ins[:second], start, *loop.ins[second:]],
        outs=[*carried, total],
        body=inner,
        consts=first,
        carry=loop.carry + 1,
    )
    return [zeros, new_loop], total
