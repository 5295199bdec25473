"""Find out whether the compiler partitions a part of a program that has a `shard_map`."""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from typing import Any

import jax

from ..._engine.tracing import Traced
from ..._jax import shard_maps_in
from ..._jax.compiling import is_partitioned
from ..._mesh import AbstractMesh, split_over
from ..._program import Atom, Body, is_sharded, pairs
from ..._program.where import where_of
from .compile import inputs_of

LISTED = 3
"""How many lines with a `shard_map` are named."""


def checked_part(traced: Traced, args: tuple[Any, ...], mesh: AbstractMesh | None) -> str:
    """Return which part of a program is checked if the compiler partitions the rest, else nothing.

    Only declared shardings count: those of arguments, constraints, and Explicit axes.

    Args:
        traced: The program, on the largest mesh.
        args: The arguments as they were given: drawn values have lost their shardings.
        mesh: The mesh.
    """
    body, jaxpr = traced.program.body, traced.program.jaxpr
    if mesh is None or mesh.size == 1 or not is_sharded(body):
        return ""
    if not is_partitioned(jaxpr) and not _computes_with(body, _split_inputs(traced, args, mesh)):
        return ""
    sources = (where_of(eqn.source_info) for eqn in shard_maps_in(jaxpr))
    lines = list(dict.fromkeys(str(where) for where in sources if where.file))
    more = [f"{len(lines) - LISTED} more"] if len(lines) > LISTED else []
    *first, last = [*lines[:LISTED], *more] or [""]
    places = f"{', '.join(first)} and {last}" if first else last
    what = f"the shard_map{'s' * bool(first)}{' at ' * bool(places)}{places}"
    return (
        f"Checked: {what}. The rest is partitioned by the compiler, which keeps its meaning: "
        "`shardwise explain` shows what it sends."
    )


def _split_inputs(traced: Traced, args: tuple[Any, ...], mesh: AbstractMesh) -> set[Atom]:
    """Return the inputs that are split over an axis of more than one device."""
    leaves, count = jax.tree.leaves(args), len(traced.argument_paths)
    if len(leaves) == count:
        constants = traced.values[: len(traced.values) - count]
        traced = dataclasses.replace(traced, values=[*constants, *leaves])
    names = {name for name, size in mesh.shape.items() if size > 1}
    inputs = zip(traced.program.body.ins, inputs_of(traced), strict=True)
    return {var for var, item in inputs if any(names & {*row} for row in split_over(item.spec))}


def _computes_with(body: Body, split: Set[Atom]) -> bool:
    """Return whether an operation outside `shard_map` has one of these values as an operand."""
    for op in body.ops:
        if op.scope or split.isdisjoint(op.ins):
            continue
        nested = [(inner, {b for a, b, _ in tied if a in split}) for inner, tied in pairs(op)]
        if not nested or any(_computes_with(*pair) for pair in nested):
            return True
    return False
