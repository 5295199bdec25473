"""Pending reductions: `unreduced` in a spec or a type.

On a mesh with Explicit axes a value may be declared unreduced over an axis. It then represents the
sum (or maximum, minimum) of the devices' values, which has not been computed yet. Such a value
consists of every device's share, inside and outside a `shard_map`, and operations apply to each
share, as on a real mesh. The reduction runs when the program reshards the value, and when the value
leaves the program. A replicated value that is declared unreduced becomes the share of the first
device, and zero on the others, as in XLA.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp

from .. import _jax
from .._jax import types
from .._mesh import Axis, axes_of, placement
from . import primitives
from .ir import Atom, AxisIndex, Collective, Leaf, Split, Var
from .jaxpr_collectives import JaxprWalk

REDUCING = {"dot_general"} | primitives.names(
    lambda p: p.acts == "reduces" and p.combines in primitives.BY_KIND
)
"""Operations that may leave the reduction of a split dimension pending."""


REPLICATING = {"broadcast_in_dim"}
"""Operations with a replicated result that its type may declare unreduced."""


def convert_unreduced(walk: JaxprWalk, eqn: Any, atom: Atom, old_type: Any, new_type: Any) -> Atom:
    """Convert a value from one type to another: run pending reductions, or add some."""
    old_axes, new_axes = types.unreduced_axes(old_type), types.unreduced_axes(new_type)
    if old_axes - new_axes:
        atom = reduce_shares(walk, eqn, atom, old_type, old_axes - new_axes)
    if new_axes - old_axes:
        atom = as_shares(walk, eqn, atom, new_type, new_axes - old_axes)
    return atom


def reduce_shares(walk: JaxprWalk, eqn: Any, atom: Atom, aval: Any, names: frozenset[str]) -> Atom:
    """Reduce the shares of the devices along these axes."""
    axes = _axes(aval, names)
    name = primitives.BY_KIND[types.reduction_kind(aval)]
    out = Var(*_jax.shape_of(aval))
    op = Collective([atom], [out], name, tuple(axes.values()), {})
    return walk.within(axes).add(eqn, op)[0]


def as_shares(walk: JaxprWalk, eqn: Any, atom: Atom, aval: Any, names: frozenset[str]) -> Atom:
    """Turn a replicated value into shares: all of it on the first device, zero on the others."""
    if types.reduction_kind(aval) != "sum":
        return atom  # The maximum of the same value everywhere is that value.
    axes = _axes(aval, names)
    inner = walk.within(axes)
    indices = [
        inner.add(eqn, AxisIndex([], [Var((), jnp.dtype("int32"))], axis))[0]
        for axis in axes.values()
    ]
    out = Var(*_jax.shape_of(aval))
    return inner.add(eqn, Leaf([atom, *indices], [out], "as_share", partial(_on_first_device)))[0]


def split_reduced_operands(
    walk: JaxprWalk, eqn: Any, name: str, ins: list[Atom]
) -> list[Atom] | None:
    """Split the operands of an operation whose result leaves a reduction pending.

    Return None if the operation changes pending reductions in an unsupported way.
    """
    old_axes = frozenset().union(*(types.unreduced_axes(v.aval) for v in eqn.invars))
    new_axes = frozenset().union(*(types.unreduced_axes(v.aval) for v in eqn.outvars))
    if old_axes == new_axes:
        return ins
    if name in REPLICATING and not old_axes:
        return ins
    if old_axes - new_axes or name not in REDUCING:
        return None
    axes = _axes(eqn.outvars[0].aval, new_axes - old_axes)
    operands = zip(ins, eqn.invars, _reduced_dims(name, eqn.params), strict=True)
    return [_cut(walk, eqn, atom, v.aval, dims, axes) for atom, v, dims in operands]


def results(walk: JaxprWalk, eqn: Any, name: str, outs: list[Atom]) -> list[Atom]:
    """Return the results of an operation as unreduced as their types declare them."""
    if name not in REPLICATING or any(types.unreduced_axes(v.aval) for v in eqn.invars):
        return outs
    rows = zip(outs, eqn.outvars, strict=True)
    return [convert_unreduced(walk, eqn, out, None, v.aval) for out, v in rows]


def _reduced_dims(name: str, params: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    return params["dimension_numbers"][0] if name == "dot_general" else (params["axes"],)


def _cut(
    walk: JaxprWalk,
    eqn: Any,
    atom: Atom,
    aval: Any,
    dims: tuple[int, ...],
    axes: Mapping[str, Axis],
) -> Atom:
    rows = placement(types.spec_of(aval), len(aval.shape), axes)
    split_axes = tuple(row if d in dims else () for d, row in enumerate(rows))
    if not any(split_axes):
        return atom
    shape = list(aval.shape)
    for d, row in enumerate(split_axes):
        for axis in row:
            shape[d] //= axis.size
    return walk.within(axes).add(eqn, Split([atom], [Var(tuple(shape), aval.dtype)], split_axes))[0]


def _axes(aval: Any, names: frozenset[str]) -> dict[str, Axis]:
    return axes_of(types.mesh_of(aval), names)


def _on_first_device(x: Any, *coordinates: Any) -> list[Any]:
    first = jnp.stack(coordinates).max() == 0
    return [jnp.where(first, x, jnp.zeros_like(x))]
