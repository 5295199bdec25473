"""Remove dead code, as every compiler does.

A list of operations already holds only what its results need. This pass removes results of loops
and branches that nobody reads, and what only those need: a `psum` of a metric that a `scan` stacks
and nobody uses is never sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from ..._program import Atom, Body, Cond, Op, Scan, Var, While

T = TypeVar("T")


def pruned(body: Body) -> Body:
    """Return the same results from fewer operations."""
    return _needed(body, [True] * len(body.outs))


def _needed(body: Body, is_used: Sequence[bool]) -> Body:
    """Return the part of a list that the wanted results need; its inputs stay."""
    outs = _those(body.outs, is_used)
    needed_ids = set(map(id, outs))
    ops: list[Op] = []
    for op in reversed(body.ops):
        if op.effectful or any(id(var) in needed_ids for var in op.outs):
            ops.append(_lighter(op, needed_ids))
            needed_ids |= set(map(id, ops[-1].ins))
    return Body(body.ins, ops[::-1], outs)


def _lighter(op: Op, used: set[int]) -> Op:
    is_used = [id(var) in used for var in op.outs]
    match op:
        case Scan():
            return _scan(op, is_used)
        case While():
            return _while(op, is_used)
        case Cond():
            branches = tuple(_needed(branch, is_used) for branch in op.branches)
            return dataclasses.replace(op, outs=_those(op.outs, is_used), branches=branches)
    return op


def _scan(op: Scan, is_used: list[bool]) -> Scan:
    carried, body = _fixed_point(op.body, is_used, op.consts, op.carry)
    read = _reads(body)
    keep = [id(var) in read for var in op.body.ins]
    keep[op.consts : op.consts + op.carry] = carried
    return dataclasses.replace(
        op,
        ins=_those(op.ins, keep),
        outs=_those(op.outs, [*carried, *is_used[op.carry :]]),
        body=Body(_those(body.ins, keep), body.ops, body.outs),
        consts=sum(keep[: op.consts]),
        carry=sum(carried),
    )


def _while(op: While, is_used: list[bool]) -> While:
    cond = _needed(op.cond, [True])
    decides = _reads(cond)
    is_used = [
        is_wanted or id(var) in decides
        for is_wanted, var in zip(is_used, op.cond.ins[op.cond_consts :], strict=True)
    ]
    carried, body = _fixed_point(op.body, is_used, op.body_consts, len(is_used))
    first = op.cond_consts + op.body_consts
    return dataclasses.replace(
        op,
        ins=[*op.ins[:first], *_those(op.ins[first:], carried)],
        outs=_those(op.outs, carried),
        cond=Body(_behind(cond.ins, op.cond_consts, carried), cond.ops, cond.outs),
        body=Body(_behind(body.ins, op.body_consts, carried), body.ops, body.outs),
    )


def _fixed_point(
    body: Body, is_used: list[bool], consts: int, carry: int
) -> tuple[list[bool], Body]:
    """Return which values must be carried: wanted at the end, or needed by an iteration for it."""
    carried = is_used[:carry]
    while True:
        inner = _needed(body, [*carried, *is_used[carry:]])
        read = _reads(inner)
        ins = body.ins[consts : consts + carry]
        more = [is_carried or id(var) in read for is_carried, var in zip(carried, ins, strict=True)]
        if more == carried:
            return carried, inner
        carried = more


def _reads(body: Body) -> set[int]:
    atoms: list[Atom] = [atom for op in body.ops for atom in op.ins]
    return set(map(id, [*atoms, *body.outs]))


def _behind(ins: list[Var], consts: int, carried: list[bool]) -> list[Var]:
    return [*ins[:consts], *_those(ins[consts:], carried)]


def _those(values: Sequence[T], keep: Sequence[bool]) -> list[T]:
    return [value for value, keep_it in zip(values, keep, strict=True) if keep_it]
