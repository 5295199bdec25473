"""Where a wrong result comes from.

The program on the mesh in question and on the mesh of ones are the same list of operations with
other sizes. Values that are the same on all devices can be compared between the two. Some differ
on the way and are mended later (a sum over devices that is then divided by their number), so what
counts is a value from which wrong values lead all the way to the wrong result: the first of these
in program order is where the program starts to depend on the number of devices.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._program import (
    Atom,
    Body,
    Collective,
    Leaf,
    Op,
    Var,
    Where,
    derivative_of,
)

Observe = Callable[[Sequence[Var]], list[Any]]
"""Runs a program and gives the values asked for, one device's each."""

LIMIT = 1 << 24
"""How many bytes of values are looked at, at most."""


def origin(
    body: Body,
    ones: Body,
    leaf: int,
    observe: Observe,
    observe_ones: Observe,
    agree: Callable[[Any, Any], bool],
) -> Op | None:
    """The operation from which a wrong result starts to depend on the number of devices."""
    target = body.outs[leaf]
    if not isinstance(target, Var):
        return None
    pairs = _comparable(body, ones, ancestors(body, target))
    got = observe([var for _, var, _ in pairs])
    want = observe_ones([twin for _, _, twin in pairs])
    wrong = {
        var
        for (_, var, _), a, b in zip(pairs, got, want, strict=True)
        if not agree(np.asarray(a), np.asarray(b))
    }
    compared = {var for _, var, _ in pairs}
    reached = _reaching(body, target, wrong, compared)
    constant = _constants(body)
    return next((op for op, var, _ in pairs if var in reached and var not in constant), None)


def _constants(body: Body) -> set[Var]:
    """Values made of nothing but numbers in the program: a local size may be one of them."""
    found: set[Var] = set()
    for op in body.ops:
        if isinstance(op, Leaf) and all(not isinstance(a, Var) or a in found for a in op.ins):
            found |= set(op.outs)
    return found


def ancestors(body: Body, target: Atom) -> list[Op]:
    """The operations that a value depends on, in program order."""
    needed = {id(target)}
    found = []
    for op in reversed(body.ops):
        if any(id(out) in needed for out in op.outs):
            needed |= {id(atom) for atom in op.ins}
            found.append(op)
    return found[::-1]


def _comparable(body: Body, ones: Body, ops: list[Op]) -> list[tuple[Op, Var, Var]]:
    """Values that are the same on all devices, each with its twin on the mesh of ones."""
    matcher = difflib.SequenceMatcher(
        None, [_key(op) for op in body.ops], [_key(op) for op in ones.ops], autojunk=False
    )
    twins: dict[int, Op] = {}
    for block in matcher.get_matching_blocks():
        for offset in range(block.size):
            twins[id(body.ops[block.a + offset])] = ones.ops[block.b + offset]
    found = []
    size = 0
    for op in ops:
        twin = twins.get(id(op))
        if twin is None:
            continue
        for var, other in zip(op.outs, twin.outs, strict=True):
            plain = not var.axes and var.shape == other.shape and var.dtype == other.dtype
            if plain and not _is_key(var.dtype):
                size += var.bytes
                if size <= LIMIT:
                    found.append((op, var, other))
    return found


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.extended)


def _key(op: Op) -> tuple[Any, ...]:
    name = op.name if isinstance(op, Leaf | Collective) else ""
    return type(op).__name__, name, op.where.file, op.where.line, op.where.column


def _reaching(body: Body, target: Var, wrong: set[Var], compared: set[Var]) -> set[Var]:
    """The wrong values from which only wrong or uncomparable values lead to the target."""
    open_ = {target}
    reached = set()
    for op in reversed(body.ops):
        if not any(out in open_ for out in op.outs):
            continue
        for atom in op.ins:
            if isinstance(atom, Var) and (atom in wrong or atom not in compared):
                open_.add(atom)
        reached |= {out for out in op.outs if out in wrong and out in open_}
    return reached


def place(op: Op) -> Where:
    """The line to name for an operation: for one that autodiff made, the line of the `grad`."""
    return (derivative_of(op.source) if op.backward else None) or op.where


def follows_sharding(body: Body, ones: Body, target: Atom) -> Op | None:
    """A random number drawn in a shape, or with a key, that the mesh decides on."""
    there = [op for op in ancestors(body, target) if _draws(op)]
    shapes = {var.shape for op in ones.ops if _draws(op) for var in op.outs}
    for op in there:
        if any(var.axes or var.shape not in shapes for var in op.outs):
            return op
    return None


def _draws(op: Op) -> bool:
    return isinstance(op, Leaf) and op.name in RANDOM


RANDOM = {"random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform"}


def mean_of_means(body: Body, op: Op) -> Op | None:
    """A division by something that differs between the devices, under a mean over them."""
    if not isinstance(op, Collective) or op.name != "psum":
        return None
    makers = {out: maker for maker in body.ops for out in maker.outs}
    atom = op.ins[0]
    for _ in range(8):
        maker = makers.get(atom) if isinstance(atom, Var) else None
        if not isinstance(maker, Leaf):
            return None
        if (
            maker.name == "div"
            and isinstance(maker.ins[1], Var)
            and maker.ins[1].axes & set(op.axes)
        ):
            return maker
        atom = maker.ins[0]
    return None
