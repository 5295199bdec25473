"""Remove dead code, as every compiler does.

A list of operations already holds only what its results need. This pass removes results of loops
and branches that nobody reads, and what only those need: a `psum` of a metric that a `scan` stacks
and nobody uses is never sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import compress

from ..._program import Body, Cond, Op, Scan, While


def pruned(body: Body) -> Body:
    """Return the same results from fewer operations."""
    return _needed(body, [True] * len(body.outs))


def _needed(body: Body, is_used: Sequence[bool]) -> Body:
    """Return the part of a list that the wanted results need; its inputs stay."""
    outs = list(compress(body.outs, is_used))
    needed_ids = set(map(id, outs))
    ops: list[Op] = []
    for op in reversed(body.ops):
        is_needed = [id(var) in needed_ids for var in op.outs]
        if op.effectful or any(is_needed):
            ops.append(_lighter(op, is_needed))
            needed_ids |= set(map(id, ops[-1].ins))
    return Body(body.ins, ops[::-1], outs)


def _lighter(op: Op, is_used: list[bool]) -> Op:
    match op:
        case Scan():
            return _scan(op, is_used)
        case While():
            return _while(op, is_used)
        case Cond():
            branches = tuple(_needed(branch, is_used) for branch in op.branches)
            outs = list(compress(op.outs, is_used))
            return dataclasses.replace(op, outs=outs, branches=branches)
    return op


def _scan(op: Scan, is_used: list[bool]) -> Scan:
    carried, body = _fixed_point(op.body, is_used, op.consts, op.carry)
    read = _reads(body)
    keep = [id(var) in read for var in op.body.ins]
    keep[op.consts : op.consts + op.carry] = carried
    return dataclasses.replace(
        op,
        ins=list(compress(op.ins, keep)),
        outs=list(compress(op.outs, [*carried, *is_used[op.carry :]])),
        body=Body(list(compress(body.ins, keep)), body.ops, body.outs),
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
    # The constants of the condition come first, then those of the body, then what is carried.
    in_cond = [True] * op.cond_consts + carried
    in_body = [True] * op.body_consts + carried
    return dataclasses.replace(
        op,
        ins=list(compress(op.ins, [True] * op.cond_consts + in_body)),
        outs=list(compress(op.outs, carried)),
        cond=Body(list(compress(cond.ins, in_cond)), cond.ops, cond.outs),
        body=Body(list(compress(body.ins, in_body)), body.ops, body.outs),
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
    return {id(atom) for op in body.ops for atom in op.ins} | set(map(id, body.outs))
