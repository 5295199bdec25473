"""Reductions that are still owed: `unreduced` in a spec or a type.

On a mesh with Explicit axes a value may be declared unreduced over an axis. What it stands for is
then the sum (or maximum, minimum) of what the devices hold, and nobody has taken it yet. Such a
value keeps every device's share, inside and outside a `shard_map`, and what is computed from it is
computed from each share, as on a real mesh. The debt is paid where the program reshards the value,
and where it leaves the program. A whole value that is declared unreduced becomes the share of the
first device, and the others hold nothing; that is what XLA does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import jax.numpy as jnp

from .. import _jax
from .._jax import types
from .._mesh import Axis, axes_of, placement
from . import primitives
from .ir import Atom, AxisIndex, Collective, Leaf, Op, Split, Var

REDUCING = {"dot_general"} | primitives.names(
    lambda p: p.acts == "reduces" and p.combines in primitives.BY_KIND
)
"""Operations that may leave a reduction over a split dimension to be paid later."""


REPLICATING = {"broadcast_in_dim"}
"""Operations that make a whole value, of which the type then says that it is owed."""


class Walk(Protocol):
    """What is asked of the walk over a jaxpr."""

    def within(self, axes: Mapping[str, Axis]) -> Walk:
        """The same walk with more axes in scope."""
        ...

    def add(self, eqn: Any, op: Op) -> list[Any]:
        """Add an operation; its results."""
        ...


def convert_unreduced(walk: Walk, eqn: Any, atom: Atom, held: Any, wanted: Any) -> Atom:
    """A value of type `held` as one of type `wanted`: debts paid, or taken on."""
    before, after = types.unreduced_axes(held), types.unreduced_axes(wanted)
    if before - after:
        atom = reduce_shares(walk, eqn, atom, held, before - after)
    if after - before:
        atom = as_shares(walk, eqn, atom, wanted, after - before)
    return atom


def reduce_shares(walk: Walk, eqn: Any, atom: Atom, aval: Any, names: frozenset[str]) -> Atom:
    """Let the devices along these axes combine their shares."""
    axes = _axes(aval, names)
    name = primitives.BY_KIND[types.reduction_kind(aval)]
    out = Var(*_jax.shape_of(aval))
    op = Collective([atom], [out], name, tuple(axes.values()), {})
    return walk.within(axes).add(eqn, op)[0]


def as_shares(walk: Walk, eqn: Any, atom: Atom, aval: Any, names: frozenset[str]) -> Atom:
    """A whole value as shares: all of it on the first device, nothing on the others."""
    if types.reduction_kind(aval) != "sum":
        return atom  # The maximum of the same value everywhere is that value.
    axes = _axes(aval, names)
    inner = walk.within(axes)
    here = [
        inner.add(eqn, AxisIndex([], [Var((), jnp.dtype("int32"))], axis))[0]
        for axis in axes.values()
    ]
    out = Var(*_jax.shape_of(aval))
    return inner.add(eqn, Leaf([atom, *here], [out], "owe", partial(_on_first_device)))[0]


def split_reduced_operands(walk: Walk, eqn: Any, name: str, ins: list[Atom]) -> list[Atom] | None:
    """The operands of an operation cut where its result leaves a reduction owed.

    None where the operation changes what is owed in a way that is not known.
    """
    given = frozenset().union(*(types.unreduced_axes(v.aval) for v in eqn.invars))
    made = frozenset().union(*(types.unreduced_axes(v.aval) for v in eqn.outvars))
    if given == made:
        return ins
    if name in REPLICATING and not given:
        return ins
    if given - made or name not in REDUCING:
        return None
    axes = _axes(eqn.outvars[0].aval, made - given)
    operands = zip(ins, eqn.invars, _reduced_dims(name, eqn.params), strict=True)
    return [_cut(walk, eqn, atom, v.aval, dims, axes) for atom, v, dims in operands]


def results(walk: Walk, eqn: Any, name: str, outs: list[Atom]) -> list[Atom]:
    """The results of an operation, as their types say that they are owed."""
    if name not in REPLICATING or any(types.unreduced_axes(v.aval) for v in eqn.invars):
        return outs
    rows = zip(outs, eqn.outvars, strict=True)
    return [convert_unreduced(walk, eqn, out, None, v.aval) for out, v in rows]


def _reduced_dims(name: str, params: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    return params["dimension_numbers"][0] if name == "dot_general" else (params["axes"],)


def _cut(
    walk: Walk, eqn: Any, atom: Atom, aval: Any, dims: tuple[int, ...], axes: Mapping[str, Axis]
) -> Atom:
    rows = placement(types.spec_of(aval), len(aval.shape), axes)
    place = tuple(row if d in dims else () for d, row in enumerate(rows))
    if not any(place):
        return atom
    shape = list(aval.shape)
    for d, row in enumerate(place):
        for axis in row:
            shape[d] //= axis.size
    return walk.within(axes).add(eqn, Split([atom], [Var(tuple(shape), aval.dtype)], place))[0]


def _axes(aval: Any, names: frozenset[str]) -> dict[str, Axis]:
    return axes_of(types.mesh_of(aval), names)


def _on_first_device(x: Any, *here: Any) -> list[Any]:
    first = jnp.stack(here).max() == 0
    return [jnp.where(first, x, jnp.zeros_like(x))]
