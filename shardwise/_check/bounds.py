"""How large the whole numbers among the arguments of a program may be, read off their uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax.numpy as jnp

from .._program import Atom, Body, Cond, Leaf, Op, Scan, Var, While

_PASSES = """
    add broadcast_in_dim clamp concatenate convert_element_type copy dynamic_slice expand_dims
    max min optimization_barrier pad rem reshape rev select_n slice split squeeze sub
    transpose
"""
PASSES = frozenset(_PASSES.split())
"""What may stand between an argument and its use as an index, offsets and wrapping included."""

COMPARES = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))

Sources = dict[Var, frozenset[Var]]


def bounds(body: Body) -> dict[Var, int]:
    """For each input that is used as an index, one more than the largest it may be."""
    whole = (var for var in body.ins if jnp.issubdtype(var.dtype, jnp.integer))
    found: dict[Var, int] = {}
    for var, limit in _uses(body, {var: frozenset({var}) for var in whole}):
        found[var] = min(found.get(var, limit), limit)
    return found


def _uses(body: Body, sources: Sources) -> Iterator[tuple[Var, int]]:
    ranges: dict[Var, int] = {}
    for op in body.ops:
        for atom, limit in _limits(op, ranges):
            yield from ((var, limit) for var in _from(sources, [atom]))
        for inner, ins in _inside(op):
            named = zip(inner.ins, ins, strict=False)
            yield from _uses(inner, {var: _from(sources, [atom]) for var, atom in named})
        if not isinstance(op, Leaf) or op.name in PASSES:
            carried = _from(sources, op.ins)
            sources = {**sources, **dict.fromkeys(op.outs, carried)} if carried else sources
        _follow_range(op, ranges)


def _from(sources: Sources, atoms: Sequence[Atom]) -> frozenset[Var]:
    given = (sources.get(atom, frozenset()) for atom in atoms if isinstance(atom, Var))
    return frozenset().union(*given)


def _inside(op: Op) -> Iterator[tuple[Body, Sequence[Atom]]]:
    match op:
        case Scan():
            yield op.body, op.ins
        case While():
            yield op.body, op.ins[op.cond_consts :]
        case Cond():
            yield from ((branch, op.ins[1:]) for branch in op.branches)


def _follow_range(op: Op, ranges: dict[Var, int]) -> None:
    """Numbers counted from 0, in whatever shape."""
    if not isinstance(op, Leaf):
        return
    if op.name == "iota":
        ranges[op.outs[0]] = op.params["shape"][op.params["dimension"]]
    elif op.name in PASSES:
        known = [ranges[atom] for atom in op.ins if isinstance(atom, Var) and atom in ranges]
        if known:
            ranges[op.outs[0]] = min(known)


def _limits(op: Op, ranges: dict[Var, int]) -> Iterator[tuple[Atom, int]]:
    """The operands that are indices, each with the bound that this use of it sets."""
    if isinstance(op, Cond):
        yield op.ins[0], len(op.branches)
    if not isinstance(op, Leaf) or not op.ins or not isinstance(op.ins[0], Var):
        return
    shape = op.ins[0].shape
    if op.name == "gather":
        sizes, dims = op.params["slice_sizes"], op.params["dimension_numbers"].start_index_map
        yield op.ins[1], min((shape[d] - sizes[d] + 1 for d in dims), default=1)
    elif op.name.startswith("scatter"):
        dims = op.params["dimension_numbers"].scatter_dims_to_operand_dims
        yield op.ins[1], min((shape[d] for d in dims), default=1)
    elif op.name == "dynamic_slice":
        sizes = op.params["slice_sizes"]
        yield from ((a, shape[d] - sizes[d] + 1) for d, a in enumerate(op.ins[1:]))
    elif op.name == "dynamic_update_slice" and isinstance(op.ins[1], Var):
        sizes = op.ins[1].shape
        yield from ((a, shape[d] - sizes[d] + 1) for d, a in enumerate(op.ins[2:]))
    elif op.name in COMPARES:
        for one, other in (op.ins, op.ins[::-1]):
            if isinstance(other, Var) and other in ranges:
                yield one, ranges[other]
