"""Convert a jaxpr to a flat list of operations.

Calls are inlined, types that only serve JAX's own checks are dropped, collectives are converted
with the table of primitives, and unsupported primitives raise an error.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from .. import _jax
from .._base.errors import ShardingError, UnsupportedError
from .._mesh import Axis, axes_of, placement
from . import checks, jaxpr_collectives, unreduced
from .checks import Scope
from .ir import (
    Atom,
    Body,
    Cond,
    Join,
    Leaf,
    Lit,
    Op,
    Scan,
    Split,
    Var,
    While,
    like,
    outs_of,
    var_of,
)
from .liveness import dependents, live
from .primitive_row import Primitive
from .primitives import COLLECTIVES, PLACE_PARAMS, of
from .stacking import stack_value, unstack_value
from .unreduced import convert_unreduced, split_reduced_operands
from .where import LazyWhere


def build(
    jaxpr: Any,
    through: str = "",
    shares_in: Sequence[bool] | None = None,
    shares_out: Sequence[bool] | None = None,
    split_replicated: bool = False,
) -> Body:
    """Build the list of operations of a closed jaxpr, its constants in front of its inputs.

    `through` names a primitive that is replaced by the program in its parameter `program`. Inputs
    and results are global, except those in `shares_in` and `shares_out`, which differ between
    devices. `split_replicated` gives every argument of a `shard_map` a `Split`, even if it is
    replicated or unused.
    """
    try:
        return _build(jaxpr, through, shares_in, shares_out, split_replicated)
    except (ShardingError, UnsupportedError):
        # JAX drops unused operations before it compiles; the error may come from one of them.
        return _build(_jax.without_dead(jaxpr), through, shares_in, shares_out, split_replicated)


def _build(
    jaxpr: Any,
    through: str,
    shares_in: Sequence[bool] | None,
    shares_out: Sequence[bool] | None,
    split_replicated: bool,
) -> Body:
    invars, opened = _jax.as_compiled(jaxpr)
    ins = [var_of(v) for v in invars]
    ops: list[Op] = []
    walk = _Walk(ops, {}, through=through, split_replicated=split_replicated)
    env = _constants(opened)
    for v, var, shared in zip(invars, ins, shares_in or [False] * len(ins), strict=True):
        env[v] = var if shared else convert_unreduced(walk, None, var, None, v.aval)
    outs = walk.eqns(opened, env)
    shared = shares_out or [False] * len(outs)
    for index, v in enumerate(opened.outvars):
        if not shared[index]:
            outs[index] = convert_unreduced(walk, None, outs[index], v.aval, None)
    return walk.live_body(ins, outs)


@dataclasses.dataclass
class _Walk:
    """A walk over one jaxpr. `scope` maps the names of the manual axes here."""

    ops: list[Op]
    scope: Scope
    joins: dict[Var, Join] = dataclasses.field(default_factory=dict)
    calls: tuple[Any, ...] = ()
    """The calls around, innermost last: JAX cuts tracebacks off at them."""
    flow: tuple[Any, ...] = ()
    """The source info of the loops and branches around."""
    through: str = ""
    """The name of a primitive that is replaced by the program in its parameter `program`."""
    split_replicated: bool = False
    """Whether replicated arguments of a `shard_map` get a `Split` as well."""
    pinned: list[Var] = dataclasses.field(default_factory=list)
    """Values that are placed on one device."""

    def eqns(self, jaxpr: _jax.Open, env: dict[Any, Atom]) -> list[Atom]:
        for eqn in jaxpr.eqns:
            ins = [_read(env, v) for v in eqn.invars]
            outs = self.eqn(eqn, ins)
            env.update(zip(eqn.outvars, outs, strict=True))
        return [_read(env, v) for v in jaxpr.outvars]

    def eqn(self, eqn: Any, ins: list[Atom]) -> list[Atom]:
        name = _jax.primitive_name(eqn.primitive)
        row = of(name)
        if row.acts == "types":
            return ins
        if row.acts == "places":
            if _jax.on_one_device(eqn):
                ins = [self.pin(eqn, atom) for atom in ins]
            rows = zip(ins, eqn.invars, eqn.outvars, strict=True)
            return [
                convert_unreduced(self, eqn, atom, old.aval, new.aval) for atom, old, new in rows
            ]
        if row.body:
            return self.inline(eqn, row, ins)
        if name == "axis_index":
            return jaxpr_collectives.axis_index(self, eqn, ins)
        if name == self.through:
            return self.inline_program(eqn, ins)
        special: Callable[[Any, list[Atom]], list[Atom]] | None = getattr(self, f"on_{name}", None)
        if special is not None:
            return special(eqn, ins)
        if name in COLLECTIVES:
            return jaxpr_collectives.collective(self, eqn, COLLECTIVES[name], ins)
        return self.leaf(eqn, name, ins)

    # --- calls

    def call(self, jaxpr: Any, ins: list[Atom]) -> list[Atom]:
        opened = _jax.open_jaxpr(jaxpr)
        env = _constants(opened) | dict(zip(opened.invars, ins, strict=True))
        return self.eqns(opened, env)

    def inline(self, eqn: Any, row: Primitive, ins: list[Atom]) -> list[Atom]:
        if eqn.params.get("differentiated") and eqn.params.get("prevent_cse"):
            ins = [self.barrier(eqn, atom) for atom in ins]
        inner = dataclasses.replace(self, calls=(*self.calls, eqn))
        body_name = row.body if row.body in eqn.params else "call_jaxpr"  # since JAX 0.12
        if row.name == "composite" and _jax.has_refs(eqn.params[body_name]):
            raise checks.refs_in_composite(eqn.params["name"], self.where(eqn))
        return inner.call(eqn.params[body_name], ins)

    def inline_program(self, eqn: Any, ins: list[Atom]) -> list[Atom]:
        part = eqn.params["program"]
        inner = dataclasses.replace(self, calls=(*self.calls, eqn))
        invars, opened = _jax.as_compiled(part.jaxpr)
        env = _constants(opened)
        for v, atom, axes in zip(invars, ins, part.input_axes, strict=True):
            var = var_of(v)
            env[v] = var if axes else convert_unreduced(inner, eqn, atom, None, v.aval)
            for op in unstack_value(atom, var, axes) if axes else ():
                inner.add(eqn, op)
        outs = inner.eqns(opened, env)
        for index, axes in enumerate(part.result_axes):
            if axes is None:
                outs[index] = convert_unreduced(
                    inner, eqn, outs[index], opened.outvars[index].aval, None
                )
            ops, outs[index] = stack_value(outs[index], axes) if axes else ((), outs[index])
            for op in ops:
                inner.add(eqn, op)
        return outs

    def barrier(self, eqn: Any, atom: Atom) -> Atom:
        """Keep XLA from merging a rematerialised value with the original one."""
        if isinstance(atom, Lit):
            return atom
        out = like(atom)
        self.add(eqn, Leaf([atom], [out], "optimization_barrier", _barrier))
        return out

    def pin(self, eqn: Any, atom: Atom) -> Atom:
        """Convert a value placed on one device; raise if the mesh has several."""
        if math.prod(axis.size for axis in self.scope.values()) > 1:
            raise checks.on_one_device(self.where(eqn))
        out = like(atom)
        self.add(eqn, Leaf([atom], [out], "optimization_barrier", _barrier))
        self.pinned.append(out)
        return out

    def check_not_mixed(self, eqn: Any, ins: list[Atom]) -> None:
        """Raise for an operation on a value of one device and a value of the mesh."""
        wide_joins = [op for op in self.joins.values() if any(axis.size > 1 for axis in op.scope)]
        mesh = dependents(self.ops, (var for op in wide_joins for var in op.outs), but=self.pinned)
        if not mesh.isdisjoint(ins) and not dependents(self.ops, self.pinned).isdisjoint(ins):
            raise checks.on_one_device(self.where(eqn))

    def on_call_exported(self, eqn: Any, ins: list[Atom]) -> list[Atom]:
        checks.exported(eqn.params["exported"], self.where(eqn))
        return self.leaf(eqn, "call_exported", ins)

    def on_custom_lin(self, eqn: Any, ins: list[Atom]) -> list[Atom]:
        raise checks.backward_only(self.where(eqn))

    def on_custom_linear_solve(self, eqn: Any, ins: list[Atom]) -> list[Atom]:
        lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
        start = lengths.matvec + lengths.vecmat
        consts = ins[start : start + lengths.solve]
        rhs = ins[start + lengths.solve + lengths.transpose_solve :]
        return self.call(jaxprs.solve, [*consts, *rhs])

    def on_shard_map(self, eqn: Any, ins: list[Atom]) -> list[Atom]:
        params = eqn.params
        new = axes_of(params["mesh"], params["newly_manual_axes"])
        scope = {**self.scope, **new}
        ordered = {name: scope[name] for name in params["mesh"].axis_names if name in scope}
        inner = dataclasses.replace(self, scope=ordered, calls=(*self.calls, eqn))
        body = _jax.open_jaxpr(params["jaxpr"])
        parts: list[Atom] = []
        outer_axes = {name for name, axis in self.scope.items() if axis.size > 1} - new.keys()
        location = self.where(eqn)
        for spec in [*params["in_specs"], *params["out_specs"]]:
            checks.spec(spec, location)
            checks.nested(spec, outer_axes, location)
        has_many = math.prod(params["mesh"].axis_sizes) > 1
        if self.pinned and has_many and not dependents(self.ops, self.pinned).isdisjoint(ins):
            raise checks.on_one_device(location)
        names = _jax.argument_names(params["jaxpr"])
        for atom, spec, v, name in zip(ins, params["in_specs"], body.invars, names, strict=True):
            split_axes = placement(spec, len(v.aval.shape), new)
            is_split = any(split_axes) or self.split_replicated
            parts.append(inner.split(eqn, atom, split_axes, v, name) if is_split else atom)
        outs = inner.call(params["jaxpr"], parts)
        return [
            inner.join(eqn, atom, spec, v, new)
            for atom, spec, v in zip(outs, params["out_specs"], eqn.outvars, strict=True)
        ]

    def split(self, eqn: Any, atom: Atom, place: Any, v: Any, name: str) -> Atom:
        join = self.joins.get(atom) if isinstance(atom, Var) and not self.split_replicated else None
        if join is not None and join.placement == place:
            # A value that is joined and split again in the same way never left its device.
            return join.ins[0]
        return self.add(eqn, Split([atom], [var_of(v)], place, name))[0]

    def join(self, eqn: Any, atom: Atom, spec: Any, v: Any, new: Scope) -> Atom:
        split_axes = placement(spec, len(v.aval.shape), new)
        mentioned = {axis for row in split_axes for axis in row}
        shared = getattr(spec, "unreduced", ())
        rest = tuple(
            axis for axis in new.values() if axis not in mentioned and axis.name not in shared
        )
        op = Join([atom], [var_of(v)], split_axes, rest, bool(eqn.params["check_vma"]))
        self.joins[op.outs[0]] = op
        return self.add(eqn, op)[0]

    # --- control flow

    def body(self, eqn: Any, jaxpr: Any) -> Body:
        opened = _jax.open_jaxpr(jaxpr)
        inner = dataclasses.replace(self, ops=[], joins={}, flow=(*self.flow, eqn.source_info))
        ins = [var_of(v) for v in opened.invars]
        return inner.live_body(ins, inner.call(jaxpr, list(ins)))

    def live_body(self, ins: list[Var], outs: list[Atom]) -> Body:
        """Return the operations so far as a body, without those that nothing depends on."""
        splits = (
            [op.outs[0] for op in self.ops if isinstance(op, Split)]
            if self.split_replicated
            else []
        )
        ops = live(self.ops, [*outs, *splits])
        live_ids = set(map(id, ops))
        return Body(ins, ops, outs, [op for op in self.ops if id(op) not in live_ids])

    def on_scan(self, eqn: Any, ins: list[Atom]) -> list[Atom]:
        p = eqn.params
        consts, carry = _jax.scan_counts(p)
        op = Scan(
            ins,
            outs_of(eqn),
            self.body(eqn, p["jaxpr"]),
            consts,
            carry,
            p["length"],
            p["reverse"],
            p["unroll"],
        )
        return self.add(eqn, op)

    def on_while(self, eqn: Any, ins: list[Atom]) -> list[Atom]:
        p = eqn.params
        op = While(
            ins,
            outs_of(eqn),
            self.body(eqn, p["cond_jaxpr"]),
            self.body(eqn, p["body_jaxpr"]),
            p["cond_nconsts"],
            p["body_nconsts"],
        )
        return self.add(eqn, op)

    def on_cond(self, eqn: Any, ins: list[Atom]) -> list[Atom]:
        branches = tuple(self.body(eqn, branch) for branch in eqn.params["branches"])
        return self.add(eqn, Cond(ins, outs_of(eqn), branches))

    # --- everything else

    def leaf(self, eqn: Any, name: str, ins: list[Atom]) -> list[Atom]:
        if self.pinned:
            self.check_not_mixed(eqn, ins)
        ordered = any(_jax.is_ordered(e) for e in eqn.effects) or eqn.params.get("ordered")
        if self.scope and ordered:
            raise self.unsupported(eqn, f"{name} with an ordered effect")
        if checks.communicates(eqn, name, self.scope):
            raise self.unsupported(eqn, name)
        parts = split_reduced_operands(self, eqn, name, ins)
        if parts is None:
            raise self.unsupported(eqn, f"{name} with an unreduced operand or result")
        params = {k: None if k in PLACE_PARAMS else _plain(v) for k, v in eqn.params.items()}
        run = _jax.applying(eqn.primitive, params, eqn.effects)
        effect = bool(eqn.effects)
        outs = self.add(eqn, Leaf(parts, outs_of(eqn), name, run, params, effect))
        return unreduced.results(self, eqn, name, outs)

    def add(self, eqn: Any, op: Op) -> list[Any]:
        op.source = eqn.source_info if eqn is not None else None
        op.scope, op.calls = self._enclosing
        op.flow = self.flow
        self.ops.append(op)
        return list(op.outs)

    def within(self, axes: Scope) -> _Walk:
        """Return the same walk with more axes in scope."""
        return dataclasses.replace(self, scope={**self.scope, **axes})

    @functools.cached_property
    def _enclosing(self) -> tuple[tuple[Axis, ...], tuple[Any, ...]]:
        """Return the axes in scope, and the source info of the calls around, innermost first."""
        sources = tuple(call.source_info for call in reversed(self.calls))
        return tuple(self.scope.values()), sources

    def where(self, eqn: Any) -> LazyWhere:
        """Return the line of an equation, or of the innermost call around it that has one."""
        return LazyWhere(eqn.source_info if eqn is not None else None, *self._enclosing[1])

    def unsupported(self, eqn: Any, name: str) -> UnsupportedError:
        return UnsupportedError(
            f"the simulator does not support {name}",
            where=str(self.where(eqn)),
            rule="Whatever it cannot simulate exactly raises an error.",
            remedy="use the collectives of jax.lax that the documentation lists under 'What is "
            "supported'.",
        )


def _constants(jaxpr: _jax.Open) -> dict[Any, Atom]:
    """Return the constants that a jaxpr contains."""
    return {v: Lit(_jax.untyped(c)) for v, c in zip(jaxpr.constvars, jaxpr.consts, strict=True)}


def _plain(value: Any) -> Any:
    """Return a parameter with Python's integers instead of NumPy's, which overflow."""
    if isinstance(value, np.integer):
        return int(value)
    return tuple(map(_plain, value)) if type(value) is tuple else value


def _barrier(x: Any) -> list[Any]:
    return [lax.optimization_barrier(x)]


def _read(env: dict[Any, Atom], v: Any) -> Atom:
    return Lit(_jax.untyped(v.val)) if isinstance(v, _jax.Literal) else env[v]
