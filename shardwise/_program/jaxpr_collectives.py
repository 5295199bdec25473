"""Convert the collectives of a jaxpr: over mesh axes, axes of an outer `vmap`, or array
dimensions."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from jax import lax

from .. import _jax
from .._base.errors import UnsupportedError
from . import checks
from .checks import Scope
from .ir import Atom, AxisIndex, Collective, Leaf, Op, Var, like, outs_of, var_of
from .primitive_row import CollectiveForm
from .primitives import REDUCTIONS
from .where import LazyWhere


class JaxprWalk(Protocol):
    """The methods of the walk over a jaxpr that conversions use."""

    scope: Scope

    def add(self, eqn: Any, op: Op) -> list[Any]:
        """Add an operation and return its results."""
        ...

    def within(self, axes: Scope) -> JaxprWalk:
        """Return the same walk with more axes in scope."""
        ...

    def where(self, eqn: Any) -> LazyWhere:
        """Return the line of an equation."""
        ...

    def unsupported(self, eqn: Any, name: str) -> UnsupportedError:
        """Return the error for an unsupported primitive."""
        ...


def axis_index(walk: JaxprWalk, eqn: Any, ins: list[Atom]) -> list[Atom]:
    """Convert `axis_index`."""
    name = eqn.params["axis_name"]
    if name not in walk.scope:
        return _over_vmap_axes(walk, eqn, ins, outs_of(eqn), (name,))
    return walk.add(eqn, AxisIndex(ins, outs_of(eqn), walk.scope[name]))


def collective(walk: JaxprWalk, eqn: Any, form: CollectiveForm, ins: list[Atom]) -> list[Atom]:
    """Convert a collective of the table."""
    p = eqn.params
    names = p.get("axes", p.get("axis_name"))
    names = tuple(names) if isinstance(names, tuple | list) else (names,)
    dims = tuple(name for name in names if isinstance(name, int))
    if dims:
        # vmap turns a reduction over its axis into one over a dimension of the local array.
        ins = [_reduce(walk, eqn, form.name, atom, dims) for atom in ins]
    names = tuple(name for name in names if not isinstance(name, int))
    unbound = tuple(name for name in names if name not in walk.scope)
    if unbound and (unbound == names or form.name not in REDUCTIONS):
        return _over_vmap_axes(walk, eqn, ins, outs_of(eqn), unbound)
    if unbound:
        ins = [_over_vmap_axes(walk, eqn, [atom], [like(atom)], unbound)[0] for atom in ins]
        names = tuple(name for name in names if name in walk.scope)
    checks.named(form.name, names, walk.where(eqn))
    if names:
        return _over(walk, eqn, form, ins, names)
    if "perm" in p:
        checks.alone(p["perm"], walk.where(eqn))
    return ins


def _over(
    walk: JaxprWalk, eqn: Any, form: CollectiveForm, ins: list[Atom], names: tuple[str, ...]
) -> list[Atom]:
    """Convert a collective over mesh axes."""
    p, location = eqn.params, walk.where(eqn)
    axes = tuple(walk.scope[name] for name in names)
    groups = p.get("axis_index_groups")
    groups = tuple(map(tuple, groups)) if groups is not None else None
    params = {key: p[param] for key, param in form.params.items()}
    if "perm" in params:
        axes = checks.numbered(axes, walk.scope, location)
        params["perm"] = checks.permutation(params["perm"], axes, location)
    if "source" in params:
        checks.source(params["source"], axes, location)
    for v, out in zip(eqn.invars, eqn.outvars, strict=False):
        checks.operand(form.name, params, v.aval, out.aval, location)
    if groups is not None:
        groups = checks.grouped(form.name, groups, axes, location)
        if not groups:
            return ins
    if form.together:
        return walk.add(eqn, Collective(ins, outs_of(eqn), form.name, axes, params, groups))
    if len(ins) != len(eqn.outvars):
        raise walk.unsupported(eqn, form.name)
    # One operation per operand: they do not depend on each other.
    return [
        walk.add(eqn, Collective([atom], [var_of(v)], form.name, axes, params, groups))[0]
        for atom, v in zip(ins, eqn.outvars, strict=True)
    ]


def _over_vmap_axes(
    walk: JaxprWalk, eqn: Any, ins: list[Atom], outs: list[Var], names: tuple[Any, ...]
) -> list[Atom]:
    """Convert a collective over the axes of a `vmap` around the simulated function.

    Devices exchange nothing there, and `vmap` replaces it before the program runs. Until then it is
    needed to find out which values differ in a derivative.
    """
    name = _jax.primitive_name(eqn.primitive)
    run = partial(_refuse_vmap_axis, name, names, walk.where(eqn))
    return walk.add(eqn, Leaf(ins, outs, name, run, dict(eqn.params)))


def _reduce(walk: JaxprWalk, eqn: Any, name: str, atom: Atom, dims: tuple[int, ...]) -> Var:
    """Reduce dimensions of the local array."""
    operand = like(atom)
    shape = tuple(size for d, size in enumerate(operand.shape) if d not in dims)
    run, params = partial(_reduced, name, dims), {"axes": tuple(dims)}
    op = Leaf([atom], [Var(shape, operand.dtype)], f"reduce_{name[1:]}", run, params)
    return walk.add(eqn, op)[0]


def _refuse_vmap_axis(name: str, names: tuple[Any, ...], where: LazyWhere, *_: Any) -> list[Any]:
    raise UnsupportedError(
        f"{name} over {', '.join(map(repr, names))}, which is not an axis of the mesh",
        where=str(where),
        rule="An axis of a vmap exists inside that vmap only.",
        remedy="call the simulated function inside jax.vmap(..., axis_name=...).",
    )


def _reduced(name: str, dims: tuple[int, ...], x: Any) -> list[Any]:
    reduce = {"psum": lax.reduce_sum, "pmax": lax.reduce_max, "pmin": lax.reduce_min}[name]
    return [reduce(x, dims)]
