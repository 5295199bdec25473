"""Integers that represent rounded numbers, such as gradients that are sent as int8.

Devices that each round their share of a sum to integers give another sum than one device that
rounds once. Where a program that rounds this way differs between meshes, it is lifted again with
`round`, `floor`, `ceil` and casts to integers as the identity. Where an integer is used as such, as
an index or in a comparison, it is rounded there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..._program import Atom, Body, Collective, Join, Leaf, Lit, Op, Split, Var, primitives
from .leaves import as_float, lifted_leaf, retyped

KEEPS = primitives.names(
    lambda p: (
        p.identity
        or (p.moves in ("reorder", "part", "repeat", "join", "pad") and p.acts == "moves")
        or (p.acts in ("pointwise", "reduces") and (p.selects or p.linear in ("all", "each")))
    )
) | {"convert_element_type", "dot_general"}
"""Operations that such integers may pass through."""


def rounds(op: Op) -> bool:
    """Return whether an operation rounds numbers to integers."""
    if not isinstance(op, Leaf) or not _is_float(op.ins[0] if op.ins else None):
        return False
    cast = op.name == "convert_element_type" and jnp.issubdtype(op.outs[0].dtype, jnp.integer)
    return cast or primitives.of(op.name).rounds


class Quantities:
    """The integers of a program that represent rounded numbers, outside of loop bodies."""

    def __init__(self, body: Body):
        self.variables: set[Var] = set()
        for op in body.ops:
            if rounds(op) or (self._keeps(op) and any(a in self.variables for a in op.ins)):
                self.variables |= {var for var in op.outs if jnp.issubdtype(var.dtype, jnp.integer)}

    def _keeps(self, op: Op) -> bool:
        return isinstance(op, Split | Join | Collective) or (
            isinstance(op, Leaf) and op.name in KEEPS
        )

    def concerns(self, op: Leaf) -> bool:
        """Return whether an operation rounds, or has such integers as operands."""
        return rounds(op) or any(atom in self.variables for atom in op.ins)

    def lifted(self, op: Leaf, ins: list[Atom], outs: list[Var]) -> Leaf:
        """Return an operation on wide values and on integers that are not rounded."""
        casts = op.name == "convert_element_type" and any(var in self.variables for var in op.outs)
        if rounds(op) or casts:
            return dataclasses.replace(op, name="copy", ins=ins, outs=outs, run=as_float, params={})
        is_quantity = [atom in self.variables for atom in op.ins]
        if self._keeps(op):
            floats, results = map(_float_like, op.ins), map(_float_like, op.outs)
            as_floats = dataclasses.replace(op, ins=[*floats], outs=[*results])
            new = lifted_leaf(as_floats, ins, outs)
            return dataclasses.replace(new, run=functools.partial(_floated, new.run))
        run = functools.partial(_rounding, lifted_leaf(op, ins, outs).run, is_quantity, _dtypes(op))
        return dataclasses.replace(op, ins=ins, outs=outs, run=run)


def _floated(run: Callable[..., list[Any]], *xs: Any) -> list[Any]:
    # Integers are converted to float64.
    are_integers = [jnp.issubdtype(jnp.result_type(x), jnp.integer) for x in xs]
    rows = zip(xs, are_integers, strict=True)
    return run(*(lax.convert_element_type(x, jnp.float64) if n else x for x, n in rows))


def _float_like(atom: Any) -> Any:
    if isinstance(atom, Lit) or not jnp.issubdtype(atom.dtype, jnp.integer):
        return atom
    return retyped(atom, jnp.dtype(jnp.float32))


def _rounding(
    run: Callable[..., list[Any]], is_quantity: Sequence[bool], dtypes: Sequence[Any], *xs: Any
) -> list[Any]:
    rows = zip(xs, is_quantity, dtypes, strict=True)
    return run(*(jnp.round(x).astype(dtype) if integral else x for x, integral, dtype in rows))


def _dtypes(op: Leaf) -> list[Any]:
    return [atom.dtype if isinstance(atom, Var) else None for atom in op.ins]


def _is_float(atom: Any) -> bool:
    return isinstance(atom, Var) and jnp.issubdtype(atom.dtype, jnp.floating)
