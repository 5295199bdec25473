"""The operations of a sharded program.

A program is a flat list: calls are inlined, and a `shard_map` becomes a `Split` of each input, its
body, and a `Join` of each output. So two `shard_map`s over the same axes, such as a forward and a
backward pass, are part of one list. Only control flow nests.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import _jax
from .._mesh import Axis, Placement
from .where import Where, where_of


class Var:
    """A value: its local shape and dtype and, once annotated, the axes over which it differs."""

    __slots__ = ("axes", "dtype", "shape", "weak")

    def __init__(self, shape: tuple[int, ...], dtype: Any, weak: bool = False):
        self.shape = shape
        self.dtype = dtype
        self.weak = weak
        self.axes: frozenset[Axis] = frozenset()

    def __repr__(self) -> str:
        axes = f" over {sorted(self.axes)}" if self.axes else ""
        return f"<{self.kind}{list(self.shape)}{axes}>"

    @property
    def kind(self) -> str:
        """Return the name of the dtype; NumPy has none for a tangent of integers, `float0`."""
        names = getattr(self.dtype, "names", None)
        return names[0] if names else str(self.dtype)

    @property
    def bytes(self) -> int:
        """Return the size in bytes on one device."""
        count = 1
        for size in self.shape:
            count *= size
        return count * getattr(self.dtype, "itemsize", 4)


@dataclasses.dataclass(frozen=True, eq=False)
class Lit:
    """A constant."""

    value: Any
    axes: frozenset[Axis] = frozenset()


Atom = Var | Lit


@dataclasses.dataclass(eq=False)
class Op:
    """One operation. `scope` contains the manual axes around it, in mesh order."""

    ins: list[Atom]
    outs: list[Var]
    scope: tuple[Axis, ...] = dataclasses.field(default=(), kw_only=True)
    source: Any = dataclasses.field(default=None, kw_only=True, repr=False)
    calls: tuple[Any, ...] = dataclasses.field(default=(), kw_only=True, repr=False)
    """The source info of the calls around it, innermost first."""
    flow: tuple[Any, ...] = dataclasses.field(default=(), kw_only=True, repr=False)
    """The source info of the loops and branches around it: derivatives mark these, not the body."""
    # Filled in by `annotate`:
    needs: frozenset[Axis] = dataclasses.field(default=frozenset(), kw_only=True)
    """The axes over which it runs once per coordinate."""
    meets: frozenset[Axis] = dataclasses.field(default=frozenset(), kw_only=True)
    """The axes along which devices communicate here."""

    @functools.cached_property
    def where(self) -> Where:
        """Return its source line, or that of the innermost call around it that has one."""
        return where_of(self.source, *self.calls)

    @property
    def bodies(self) -> tuple[Body, ...]:
        """Return the nested lists of control flow."""
        return ()

    @property
    def backward(self) -> bool:
        """Return whether it belongs to the backward pass of a derivative."""
        sources = (self.source, *self.calls, *self.flow) if self.source is not None else ()
        return any(_jax.is_backward(source) for source in sources)

    @property
    def back_through_all(self) -> bool:
        """Return whether it belongs to the backward pass of the outermost derivative around it."""
        sources = (self.source, *self.calls) if self.source is not None else ()
        return any(_jax.is_outermost_backward(source) for source in sources)

    @property
    def differentiated(self) -> bool:
        """Return whether it belongs to a forward pass that is differentiated."""
        sources = (self.source, *self.calls) if self.source is not None else ()
        return any(_jax.is_forward(source) for source in sources)

    @property
    def effectful(self) -> bool:
        """Return whether it has side effects."""
        return any(op.effectful for body in self.bodies for op in body.ops)


@dataclasses.dataclass(eq=False)
class Body:
    """A list of operations with its inputs and outputs."""

    ins: list[Var]
    ops: list[Op]
    outs: list[Atom]
    dropped: list[Op] = dataclasses.field(default_factory=list, repr=False)
    """Operations without a result or an effect that is used; JAX does not run them either."""


@dataclasses.dataclass(eq=False)
class Leaf(Op):
    """Any operation without communication."""

    name: str
    run: Callable[..., list[Any]]
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    effect: bool = False

    @property
    def primitive(self) -> Any:
        """Return the primitive, if it is exactly one equation of JAX; else None."""
        return self.run.primitive if isinstance(self.run, _jax.Equation) else None

    @property
    def effectful(self) -> bool:
        return self.effect


@dataclasses.dataclass(eq=False)
class AxisIndex(Op):
    """The coordinate of a device."""

    axis: Axis


@dataclasses.dataclass(eq=False)
class Split(Op):
    """Split a global array over devices: an `in_spec`."""

    placement: Placement
    name: str = ""
    """The parameter of the body, if known."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Return the axes that split it."""
        return tuple(axis for row in self.placement for axis in row)


@dataclasses.dataclass(eq=False)
class Join(Op):
    """Join the parts of the devices into a global array: an `out_spec`."""

    placement: Placement
    replicated: tuple[Axis, ...] = ()
    """Axes that the spec leaves out: the parts are declared equal along them."""
    checked: bool = True
    """Whether JAX verifies that declaration."""

    axes = Split.axes


@dataclasses.dataclass(eq=False)
class Collective(Op):
    """Communication between devices. `name` and `params` are those of `collectives.RULES`."""

    name: str
    axes: tuple[Axis, ...]
    params: dict[str, Any]
    groups: tuple[tuple[int, ...], ...] | None = None

    @property
    def sends(self) -> bool:
        """Return whether anything goes to another device."""
        pairs = self.params.get("perm")
        return pairs is None or any(source != target for source, target in pairs)

    def __str__(self) -> str:
        names = [axis.name for axis in self.axes]
        axes = repr(names[0]) if len(names) == 1 else str(tuple(names))
        return f"{self.name} over {axes}, {self.where}"


@dataclasses.dataclass(eq=False)
class Scan(Op):
    """A loop of known length. Inputs: constants, carried values, stacked inputs."""

    body: Body
    consts: int
    carry: int
    length: int
    reverse: bool
    unroll: int | bool

    @property
    def bodies(self) -> tuple[Body, ...]:
        return (self.body,)


@dataclasses.dataclass(eq=False)
class While(Op):
    """A loop while a condition holds. Inputs: constants of condition and body, carried values."""

    cond: Body
    body: Body
    cond_consts: int
    body_consts: int

    @property
    def bodies(self) -> tuple[Body, ...]:
        return (self.cond, self.body)


@dataclasses.dataclass(eq=False)
class Cond(Op):
    """One of several branches. Inputs: the index, then the operands of every branch."""

    branches: tuple[Body, ...]

    @property
    def bodies(self) -> tuple[Body, ...]:
        return self.branches


def walk(ops: list[Op]) -> Iterator[Op]:
    """Yield all operations in program order, including those of nested bodies."""
    for op in ops:
        yield op
        for body in op.bodies:
            yield from walk(body.ops)


def with_bodies(op: Op, change: Callable[[Body], Body]) -> Op:
    """Return an operation with its bodies changed."""
    match op:
        case Scan():
            return dataclasses.replace(op, body=change(op.body))
        case While():
            return dataclasses.replace(op, cond=change(op.cond), body=change(op.body))
        case Cond():
            return dataclasses.replace(op, branches=tuple(map(change, op.branches)))
    return op


def is_sharded(body: Body) -> bool:
    """Return whether a program contains a `shard_map` or `pmap`."""
    return any(op.scope or isinstance(op, Split | Join) for op in walk(body.ops))


def collectives_in(ops: list[Op]) -> Iterator[Collective]:
    """Yield all collectives in program order."""
    return (op for op in walk(ops) if isinstance(op, Collective))


def pairs(op: Op) -> Iterator[tuple[Body, list[tuple[Atom, Atom, int]]]]:
    """Yield the bodies of an operation, with pairs of equal values outside and inside."""
    match op:
        case Scan():
            fixed = op.consts + op.carry
            ins = [(a, v, int(i >= fixed)) for i, (a, v) in enumerate(_zip(op.ins, op.body.ins))]
            outs = [
                (a, v, int(i >= op.carry)) for i, (a, v) in enumerate(_zip(op.outs, op.body.outs))
            ]
            yield op.body, [*ins, *outs]
        case While():
            start = op.cond_consts
            ins = _zip(op.ins[start:], op.body.ins)
            yield op.body, [(a, v, 0) for a, v in [*ins, *_zip(op.outs, op.body.outs)]]
        case Cond():
            for branch in op.branches:
                values = [*_zip(op.ins[1:], branch.ins), *_zip(op.outs, branch.outs)]
                yield branch, [(a, v, 0) for a, v in values]


def _zip(outer: list, inner: list) -> list[tuple[Atom, Atom]]:
    return list(zip(outer, inner, strict=True))


def var_of(v: Any) -> Var:
    """Return a new value for a variable of a jaxpr."""
    shape, dtype = _jax.shape_of(v.aval)
    return Var(shape, dtype, getattr(v.aval, "weak_type", False))


def outs_of(eqn: Any) -> list[Var]:
    """Return new values for the results of an equation."""
    return [var_of(v) for v in eqn.outvars]


def shape_of(atom: Atom) -> tuple[int, ...]:
    """Return the local shape of an operand."""
    return tuple(np.shape(atom.value)) if isinstance(atom, Lit) else tuple(atom.shape)


def like(atom: Atom) -> Var:
    """Return a new value of the same type."""
    if isinstance(atom, Lit):
        value = np.asarray(atom.value)
        return Var(value.shape, value.dtype)
    return Var(atom.shape, atom.dtype, atom.weak)


def twin(var: Var) -> Var:
    """Return a new value of the same type that differs over the same axes."""
    out = like(var)
    out.axes = var.axes
    return out
